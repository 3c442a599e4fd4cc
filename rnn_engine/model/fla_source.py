"""Files with flash-linear-attention's names, as Hugging Face has RWKV-7: seen under BlinkDL's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.model.fla_names import blinkdl_name, is_transposed
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.binary_file import FileStamp
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.source import TensorInfo, TensorSource

_MARK: Final = re.compile(r"model\.layers\.[0-9]+\.attn\.(r_k|k_k|k_a)")

_HEAD_SIZE: Final = 64


class FlaSource:
    """An open file with BlinkDL's names and orientation in place of its own. Closes `source` with itself."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self._stored = {blinkdl_name(name): name for name in source.tensors}
        self._tensors = {name: _turned(name, source.tensors[stored]) for name, stored in self._stored.items()}

    @property
    def stamp(self) -> FileStamp:
        return self._source.stamp

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> NDArray[Any]:
        array = self._source.read(self._stored[name])
        return array.swapaxes(-1, -2) if is_transposed(name) and array.ndim >= 2 else array

    def read_blocks(self, name: str) -> Blocks | None:
        return None if is_transposed(name) else self._source.read_blocks(self._stored[name])

    def close(self) -> None:
        self._source.close()


def with_blinkdl_names(path: Path, source: TensorSource) -> TensorSource:
    """Return the file under BlinkDL's names where it has those of flash-linear-attention, else as it is.

    Raises ModelError where it has a tensor under both names, or heads of a size at which the epsilon of
    flash-linear-attention's group norm, 1e-5 times that size, is not RWKV-7's 64e-5.
    """
    if not any(_MARK.fullmatch(name) for name in source.tensors):
        return source
    renamed = FlaSource(source)
    if len(renamed.tensors) < len(source.tensors):
        raise ModelError(f"{path}: a tensor is there under BlinkDL's name and that of flash-linear-attention")
    for name, info in renamed.tensors.items():
        if name.endswith(".att.r_k") and info.shape[-1:] != (_HEAD_SIZE,):
            raise ModelError(f"{path}: {show(name)} is {list(info.shape)}; expected heads of size {_HEAD_SIZE}")
    return renamed


def _turned(name: str, info: TensorInfo) -> TensorInfo:
    if not is_transposed(name) or len(info.shape) < 2:
        return info
    return TensorInfo((*info.shape[:-2], info.shape[-1], info.shape[-2]), info.dtype)
