"""`convert_model`: write an open model to a file or a folder, in the format that the target's name selects."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Final, TypeAlias

from rnn_engine.bounds import STORED
from rnn_engine.convert import FILE_ENDINGS, FOLDER_TITLE, TITLES
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
from rnn_engine.files import atomic_folder, is_special, output_file
from rnn_engine.forward import Progress, no_progress
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS, FloatFormat
from rnn_engine.model import ModelFile
from rnn_engine.types import ModelShape
from rnn_engine.versions.qwen2.layout import USUAL_RMS_EPSILON
from rnn_engine.versions.table import VERSIONS

_Write: TypeAlias = Callable[[IO[bytes], ConversionSource], None]
"""Writes a file of one format. Raises ModelError for what the format can't hold."""

_WRITERS: Final[Mapping[str, _Write]] = {
    ".safetensors": write_blinkdl_safetensors,
    ".st": write_st,
    ".prefab": write_prefab,
    ".pth": write_blinkdl_pth,
    ".gguf": write_llama_cpp,
}
"""The ending of a file's name, as in `TITLES` -> the function that writes such a file."""


def convert_model(
    model: ModelFile,
    target: Path | str,
    weights: str = STORED,
    *,
    force: bool = False,
    field: str = "DST",
    progress: Progress = no_progress,
) -> str:
    """Write `model` to the file or folder `target`, one tensor at a time; return the file format's title for messages.

    The ending of `target` selects the format. A Hugging Face folder is written if it has an ending that no files have,
    such as `rwkv7-0.1B-g1`, if it ends in a slash, or if it is a folder. `weights` is a choice as `WeightChoice.parse`
    reads it; a float type by itself also applies to the embedding. Tensors that are not matrices keep their type if the
    format allows it. The output has a temporary name beside `target` until it is complete.

    With `force`, a file replaces a file. A folder replaces an empty folder, or one that this function wrote and that is
    unchanged since, according to the list of its files in it (`.rnn-engine.json`).

    Raises InvalidRequestError for an ending of files in other formats, and for an existing target that must not be
    replaced; `field` is the target's name in the message. Raises ModelError if the format can't hold the model, or if
    the model can't be read. Raises OSError if the target can't be written.
    """
    suffix = _file_suffix(target, field)
    target = Path(target)
    write = _WRITERS.get(suffix)
    is_empty_folder = target.is_dir() and next(target.iterdir(), None) is None
    if target.exists() and not force and not is_special(target) and not is_empty_folder:
        message = f"{field}: {target} exists already; --force replaces it"
        raise InvalidRequestError(field, str(target), "a name that does not exist yet", message)
    specs = VERSIONS.get(model.shape.version).layout.list_specs(model.names)
    present = [spec for spec in specs if model.has(spec.name)]
    source = ConversionSource(model, present, parse_weights(weights, suffix).of(model.shape), progress)
    try:
        if write is None:
            with atomic_folder(target, field) as folder:
                write_fla(folder, source)
            return FOLDER_TITLE
        if not model.shape.has_head and suffix not in (".safetensors", ".pth"):
            raise ModelError(
                f"a {suffix} file can't hold a model without a head, {model.shape.version}; "
                "expected a name that ends in .safetensors or .pth"
            )
        if lost := _lost_settings(model.shape, suffix):
            raise ModelError(f"this format can't store the model's {lost}; expected a model with the usual one")
        with output_file(target) as file:
            write(file, source)
        return TITLES[suffix]
    except ModelError as error:
        raise ModelError(f"{target} was not written: {error}") from error


def _lost_settings(shape: ModelShape, suffix: str) -> str:
    """Return the settings of a model, as `ModelShape.settings`, that a file with the ending `suffix` can't store."""
    if suffix == ".gguf" and not shape.norm.centres:
        shape = shape.with_norm_epsilon(USUAL_RMS_EPSILON) or shape
    return shape.settings


def _file_suffix(target: Path | str, field: str) -> str:
    """Return the ending of a file's name, as in `TITLES`, or "" for a folder. Raises InvalidRequestError for others."""
    path = Path(target)
    suffix = path.suffix.lower()
    if suffix in TITLES and not path.is_dir() and not _ends_in_slash(target):
        return suffix
    if path.is_dir() or _ends_in_slash(target) or not get_close_matches(suffix, FILE_ENDINGS, 1, _ALIKE):
        return ""
    allowed = f"a file name that ends in {', '.join(TITLES)}, or a folder name, which may end in a slash"
    message = f"{field}: no format has the ending {path.suffix!r}; expected {allowed}"
    raise InvalidRequestError(field, str(target), allowed, message)


_ALIKE: Final = 0.82  # from here on an ending is a misspelling of one that files have


def _ends_in_slash(target: Path | str) -> bool:
    return str(target).endswith(("/", os.sep))


def model_bytes(path: Path) -> int:
    """Return the size in bytes of a model's file, or of all files in its folder."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())


def parse_weights(text: str, suffix: str) -> WeightChoice:
    """Parse a user's choice of weight formats for a converted model; `suffix` is the ending of the file's name.

    The syntax is that of `WeightChoice.parse`, but a float type that comes first also applies to the embedding. In a
    GGUF file, the matrices that a 4-bit choice would store in int8 are stored in q8_0.
    """
    choice = WeightChoice.parse(text)
    formats = dict(choice.formats)
    first = text.partition(",")[0].strip()
    if "emb=" not in text and isinstance(WEIGHT_FORMATS.get(first), FloatFormat):
        formats["emb"] = first
    if suffix == ".gguf" and "int8" not in text:
        formats = {group: "q8_0" if name == "int8" else name for group, name in formats.items()}
    return replace(choice, formats=formats)
