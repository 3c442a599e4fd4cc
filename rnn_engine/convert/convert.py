"""Write a model in the format that its target's name selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from rnn_engine.convert.llama_cpp import write_llama_cpp
from rnn_engine.convert.prefab import write_prefab
from rnn_engine.convert.writers import (
    ConversionSource,
    write_blinkdl_pth,
    write_blinkdl_safetensors,
    write_fla,
    write_st,
)
from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.files import atomic_file, atomic_folder
from rnn_engine.forward import Progress
from rnn_engine.forward.weight_choice import STORED, WeightChoice
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS, FloatFormat
from rnn_engine.model import OpenModel
from rnn_engine.versions.table import VERSIONS, VersionTable


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A file format to which a model can be converted: its title for messages, and the function that writes it."""

    title: str
    write: Callable[[IO[bytes], ConversionSource], None]  # raises ModelError for what the format can't hold


FILE_FORMATS: Final[Mapping[str, FileFormat]] = {
    ".safetensors": FileFormat("safetensors with BlinkDL's tensor names", write_blinkdl_safetensors),
    ".st": FileFormat("ai00's safetensors, in f16", write_st),
    ".prefab": FileFormat("ai00's prefab, in f16", write_prefab),
    ".pth": FileFormat("torch's file with BlinkDL's tensor names", write_blinkdl_pth),
    ".gguf": FileFormat("GGUF for llama.cpp, with the vocabulary", write_llama_cpp),
}
"""The ending of a file's name -> the format of the file."""

FOLDER_TITLE: Final = "a folder with flash-linear-attention's tensor names"


def _no_progress(what: str, done: int, total: int) -> None:
    """Default progress callback; ignores its arguments."""


def convert_model(
    model: OpenModel,
    target: Path,
    weights: str = STORED,
    *,
    force: bool = False,
    field: str = "DST",
    progress: Progress = _no_progress,
    versions: VersionTable = VERSIONS,
) -> str:
    """Write `model` to `target`, one tensor at a time, and return the title of the format for messages.

    The extension of `target` selects the format; without one, a Hugging Face folder is written. `weights` is a choice
    as `WeightChoice.parse` reads it; a float type by itself also applies to the embedding. Tensors that are not
    matrices keep their type if the format allows it. The output has a temporary name beside `target` until it is
    complete.

    With `force`, a file replaces a file. A folder replaces an empty folder, or one that this function wrote and that is
    unchanged since, according to the list of its files in it (`.rnn-engine.json`).

    Raises InvalidRequestError for an unknown format, and for an existing target that must not be replaced; `field` is
    the target's name in the message. Raises ModelError if the format can't hold the model, or if the model can't be
    read. Raises OSError if the target can't be written.
    """
    file_format = FILE_FORMATS.get(target.suffix)
    if file_format is None and target.suffix:
        allowed = f"a file name that ends in {', '.join(FILE_FORMATS)}, or a folder name without an ending"
        raise InvalidRequestError(field, str(target), allowed)
    if target.exists() and not force:
        raise InvalidRequestError(field, str(target), "a name that does not exist yet, or --force to replace it")
    if file_format is not None and target.exists() and not target.is_file():
        raise InvalidRequestError(
            field, str(target), "a name that does not exist yet, or the name of a file to replace"
        )
    specs = versions.get(model.shape.version).layout.list_specs(model.names)
    present = [spec for spec in specs if model.has(spec.name)]
    source = ConversionSource(model, present, parse_weights(weights, target.suffix).of(model.shape), progress)
    try:
        if file_format is None:
            with atomic_folder(target, field) as folder:
                write_fla(folder, source)
            return FOLDER_TITLE
        if model.shape.settings:
            raise ModelError(
                f"this format can't store the model's {model.shape.settings}; expected a model with the usual one"
            )
        with atomic_file(target) as file:
            file_format.write(file, source)
        return file_format.title
    except ModelError as error:
        raise ModelError(f"{target} was not written: {error}") from error


def model_bytes(path: Path) -> int:
    """Return the size in bytes of a model's file, or of all files in its folder."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())


def parse_weights(text: str, suffix: str) -> WeightChoice:
    """Parse a choice of weight formats for a converted file; `suffix` is the file's extension.

    The syntax is that of `WeightChoice.parse`, but a float type that comes first also applies to the embedding. In a
    GGUF file, the matrices that a 4-bit choice would store in int8 are stored in q8_0.
    """
    choice = WeightChoice.parse(text)
    formats = dict(choice.formats)
    first = text.partition(",")[0].strip()
    if "emb=" not in text and first != STORED and isinstance(WEIGHT_FORMATS[first], FloatFormat):
        formats["emb"] = first
    if suffix == ".gguf" and "int8" not in text:
        formats = {group: "q8_0" if name == "int8" else name for group, name in formats.items()}
    return replace(choice, formats=formats)
