"""Files in BlinkDL's names: safetensors and .pth."""

from __future__ import annotations

from typing import IO

from rnn_engine.convert.source import Source
from rnn_engine.tensor_files.entry import TensorEntry
from rnn_engine.tensor_files.pth_writer import write_pth
from rnn_engine.tensor_files.safetensors_writer import write_safetensors


def write_blinkdl_safetensors(file: IO[bytes], source: Source) -> None:
    """Write a safetensors file."""
    write_safetensors(file, _entries(source), {"format": "pt"})


def write_blinkdl_pth(file: IO[bytes], source: Source) -> None:
    """Write a .pth file."""
    write_pth(file, _entries(source))


def _entries(source: Source) -> list[TensorEntry]:
    return [source.entry(spec, spec.name) for spec in source.specs]
