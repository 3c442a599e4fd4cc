"""Open a model file of any supported format, read its tensors under BlinkDL's names, and cut a model into parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.model.conventions import locate_tensors
from rnn_engine.model.fingerprint import (
    CountParts,
    TensorDigest,
    find_recorded,
    fingerprint,
    ignore_parts,
    recall,
    with_settings,
)
from rnn_engine.model.ggml import apply_metadata, locate_llama_cpp
from rnn_engine.model.huggingface import (
    HfConfig,
    Library,
    has_fla_names,
    has_hf_names,
    has_qwen2_names,
    locate_fla,
    locate_hf,
    locate_qwen2,
    open_folder,
)
from rnn_engine.model.layout import CheckedModel, Layout, TensorSpec, check_tensors, refuse_attention
from rnn_engine.model.lora import Lora, LoraChoice, open_lora
from rnn_engine.model.stored import StoredTensor, Swap
from rnn_engine.quantised import Blocks
from rnn_engine.quantised.rows import Matrix, StoredRows
from rnn_engine.tensor_files.formats import GgufParts, open_source
from rnn_engine.tensor_files.gguf_file import GgufFile
from rnn_engine.tensor_files.source import FileStamp, TensorInfo, TensorSource, show, show_all
from rnn_engine.types import Model, ModelShape

_MERGED: Final = np.dtype(np.float32)  # the type of a tensor that a LoRA changes

FindLayout: TypeAlias = Callable[[Mapping[str, TensorInfo]], Layout]
"""A function from a file's tensors to the layout of the RWKV version that has them. Raises ModelError for none."""


class ModelFile:
    """An open model file or Hugging Face folder: its shape, and its tensors, which are read on demand.

    The arrays that it returns belong to the caller and stay valid after `close`. Every read raises ModelError if the
    file was truncated or written to since it was opened: tensors read before and after could belong to two models. If
    another file replaces it, for example by a rename, the opened one is still read.

    LoRAs that were merged are applied to each tensor that is read. A tensor that they change is float32.
    """

    def __init__(self, path: Path, source: TensorSource, found: _Found) -> None:
        self.path = path
        self.shape: ModelShape = found.checked.shape
        self.names: tuple[str, ...] = tuple(found.checked.tensors)
        self.tensors: Mapping[str, TensorInfo] = found.checked.tensors  # in BlinkDL's names and orientation
        self._source = source
        self._stamp = found.stamp
        self._stored = found.stored
        self.loras: list[Lora] = []
        self._fingerprint: str | None = None
        self._identifying = threading.Lock()
        self._digests: dict[str, TensorDigest] | None = None  # of what is read, for the fingerprint

    @classmethod
    def open(cls, path: Path, find_layout: FindLayout) -> ModelFile:
        """Open a file or folder by the layout that `find_layout` returns. Raises ModelError, which has the path."""
        source = open_folder(path) if path.is_dir() else open_source(path)
        try:
            return cls(path, source, _find_model(path, source, find_layout))
        except BaseException:
            source.close()
            raise

    def merge(self, choices: Sequence[LoraChoice], specs: Sequence[TensorSpec]) -> None:
        """Merge LoRAs into what is read from now on. Raises ModelError; the caller then closes the model."""
        for choice in choices:
            self.loras.append(open_lora(choice, specs, self.tensors))
        self.tensors = {
            name: TensorInfo(info.shape, _MERGED) if self._loras_of(name) else info
            for name, info in self.tensors.items()
        }

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_bytes(self) -> int:
        return self._source.stamp.size

    @property
    def fingerprint(self) -> str:
        return self.identify()

    def identify(self, progress: CountParts = ignore_parts) -> str:
        """Return the model's fingerprint: a digest of all weights, of the shape's settings and of the merged LoRAs.

        The first call reads the whole file, unless it is large and an earlier run has recorded the digest. `progress`
        takes the number of tensors that are read, and that of all. Another thread may meanwhile read tensors. Raises
        ModelError as `tensor` does.
        """
        with self._identifying:
            if self._fingerprint is None:
                known, self._digests = self._digests, None

                def compute() -> str:
                    return fingerprint(self.shape.version, self.names, self.matrix, progress, known=known)

                weights = recall(self.path, self._stamp, compute)
                loras = "; ".join(lora.fingerprint for lora in self.loras)
                self._fingerprint = with_settings(with_settings(weights, self.shape.settings), loras)
            return self._fingerprint

    def start_identifying(self) -> None:
        """From now on hash what is read, so that `identify` reads only the rest. Nothing if the digest is recorded."""
        if self._fingerprint is None and find_recorded(self.path, self._stamp) is None:
            self._digests = {}

    def has(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> NDArray[Any]:
        """Read the tensor that BlinkDL calls `name`, in BlinkDL's orientation: contiguous, aligned and read-only.

        It has the stored element type, or is f32 if it is stored in quantised blocks or changed by a LoRA. Raises
        KeyError if the model has no such tensor, ModelError if a file is damaged or has changed, and ValueError after
        `close`.
        """
        array = np.require(self._oriented(name), requirements=("C", "A"))
        if loras := self._loras_of(name):
            array = array.astype(_MERGED)
            for lora in loras:
                lora.merge(name, array)
        array.flags.writeable = False
        if self.block_type(name) is None:
            self._note(name, 0, array)
        return array

    def block_type(self, name: str) -> str | None:
        """Return the block format of a stored tensor; None for plain numbers and for one that a LoRA changes."""
        return self.tensors[name].block_type

    def blocks(self, name: str) -> Blocks | None:
        """Read a matrix in the file's blocks, or None if it has none of use; see `Model.blocks`."""
        info, place = self.tensors[name], self._stored[name]
        if info.block_type is None:
            return None
        blocks = self._source.read_blocks(place.name)
        if blocks is None or blocks.shape != info.shape:
            return None
        return place.orient_blocks(self._checked(place.name, blocks))

    def matrix(self, name: str, *, transposed: bool = False) -> Matrix:
        """Return a tensor for reading by rows, or read at once if that is quicker or needed; see `Model.matrix`."""
        if self._loras_of(name):
            return self.tensor(name).T if transposed else self.tensor(name)
        info, place = self.tensors[name], self._stored[name]
        stored = self._source.tensors[place.name].shape
        wanted = info.shape[::-1] if transposed else info.shape
        steps = (Swap(),) if transposed else ()
        if place.steps == steps and len(wanted) == 2 and stored == wanted and self._source.reads_rows(place.name):
            return StoredRows(wanted, info.dtype, partial(self._read_rows, None if transposed else name, place.name))
        blocks = None if transposed else self.blocks(name)
        found = self._oriented(name) if blocks is None else blocks
        if info.block_type is None or blocks is not None:
            self._note(name, 0, found)
        return found.T if transposed and not isinstance(found, Blocks) else found

    def close(self) -> None:
        """Close the file, and those of the LoRAs. Idempotent."""
        for lora in self.loras:
            lora.close()
        self._source.close()

    def _loras_of(self, name: str) -> list[Lora]:
        return [lora for lora in self.loras if lora.changes(name)]

    def _read_rows(self, name: str | None, stored: str, rows: slice) -> NDArray[Any] | Blocks:
        blocks = self._source.read_blocks(stored, rows)
        found = self._source.read(stored, rows) if blocks is None else self._checked(stored, blocks)
        if name is not None:
            self._note(name, rows.start, found)
        return found

    def _checked(self, stored: str, blocks: Blocks) -> Blocks:
        if not blocks.is_sound:
            raise self._unsound(stored)
        return blocks

    def _unsound(self, stored: str) -> ModelError:
        kind = self._source.tensors[stored].block_type
        message = f"tensor {show(stored)} has damaged blocks of {kind}; expected scales that are finite numbers"
        return ModelError(f"{self.path}: {message}")

    def _note(self, name: str, first: int, rows: NDArray[Any] | Blocks) -> None:
        if (digests := self._digests) is not None:
            digests.setdefault(name, TensorDigest(self.tensors[name].shape)).add(first, rows)

    def _oriented(self, name: str) -> NDArray[Any]:
        """Read the tensor `name` in BlinkDL's orientation and shape, as a view of the stored bytes if possible."""
        info, place = self.tensors[name], self._stored[name]
        array = self._source.read(place.name)
        if info.block_type is not None and not np.isfinite(array).all():
            raise self._unsound(place.name)
        return place.orient(array).reshape(info.shape)  # without surplus axes of size 1


@dataclass(frozen=True, slots=True)
class _Found:
    """The model found in an open file: how the file stores each tensor, and the model's checked shape and tensors."""

    stored: Mapping[str, StoredTensor]  # BlinkDL's name -> where the tensor is
    checked: CheckedModel
    stamp: FileStamp  # of all files that define the model


def _find_model(path: Path, source: TensorSource, find_layout: FindLayout) -> _Found:
    """Find how an open file stores each tensor, and check tensors and config. Raises ModelError with the path."""
    config = _read_config(path, source.tensors)
    try:
        refuse_attention(source.tensors)
        stored, layout = _locate(path, source, config, find_layout)
        tensors = {name: place.describe(source.tensors[place.name]) for name, place in stored.items()}
        checked = check_tensors(layout or find_layout(tensors), tensors)
        if isinstance(source, GgufFile | GgufParts):
            checked = replace(checked, shape=apply_metadata(source.metadata, checked.shape))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    if config is None:
        return _Found(stored, checked, source.stamp)
    stamps = [stamp for stamp in (source.stamp, config.stamp) if stamp is not None]
    return _Found(stored, replace(checked, shape=config.apply(checked.shape)), FileStamp.of_all(stamps))


def _read_config(path: Path, names: Iterable[str]) -> HfConfig | None:
    """Read the config.json if `names` are a Hugging Face library's, as those in a folder must be; else None."""
    names, is_folder = tuple(names), path.is_dir()
    folder = path if is_folder else path.parent
    if has_fla_names(names):
        return HfConfig.read(folder, "flash-linear-attention")
    if has_hf_names(names):
        return HfConfig.read(folder, "transformers")
    if has_qwen2_names(names):
        return HfConfig.read(folder, "qwen2")
    if is_folder:
        raise ModelError(
            f"{path}: no tensor has a name of flash-linear-attention or transformers for an RWKV, such as "
            f"model.layers.0.attn.r_k; found {show_all(names) or 'none'}"
        )
    return None


_LOCATE: Final[Mapping[Library, Callable[[Iterable[str], HfConfig], Iterable[tuple[str, StoredTensor]]]]] = {
    "flash-linear-attention": lambda names, _: locate_fla(names),
    "transformers": lambda names, _: locate_hf(names),
    "qwen2": locate_qwen2,
}


def _locate(
    path: Path, source: TensorSource, config: HfConfig | None, find_layout: FindLayout
) -> tuple[dict[str, StoredTensor], Layout | None]:
    """Map BlinkDL's name of each tensor of a model to how its file, of any format, stores the tensor.

    Returns the layout, too, if the names in the file show it. Raises ModelError if two stored tensors are the same
    tensor of the model.
    """
    if isinstance(source, GgufFile | GgufParts):
        return locate_llama_cpp(source.metadata, source.tensors), None
    if config is None:
        layout = find_layout(source.tensors)
        used = layout.select_used(source.tensors)
        return locate_tensors(path, layout.list_specs(used), used), layout
    stored: dict[str, StoredTensor] = {}
    for name, place in _LOCATE[config.library](source.tensors, config):
        if name in stored:
            raise ModelError(
                f"{show(stored[name].name)} and {show(place.name)} both stand for {name}; expected only one of them"
            )
        stored[name] = place
    if config.ties_head and "emb.weight" in stored:
        stored["head.weight"] = stored["emb.weight"]
    return stored, None


@dataclass(frozen=True)
class ModelPart:
    """Some layers of a model, counted from 0, perhaps with the embedding before them or the head after them.

    Tensors outside the layers that are not the embedding's go with the head.
    """

    model: Model
    layers: range  # of the model
    has_embedding: bool = True
    has_head: bool = True

    @cached_property
    def shape(self) -> ModelShape:
        return replace(self.model.shape, num_layers=len(self.layers))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, map(self._own_name, self.model.names)))

    def name_in_model(self, name: str) -> str:
        """Return the name in the whole model of the tensor that is called `name` in this part."""
        layer, rest = self._split(name)
        return name if layer is None else f"{self.shape.tensor_names.layers}{layer + self.layers.start}{rest}"

    def has(self, name: str) -> bool:
        in_model = self.name_in_model(name)
        return self.model.has(in_model) and self._own_name(in_model) == name

    def tensor(self, name: str) -> NDArray[Any]:
        return self.model.tensor(self.name_in_model(name))

    def block_type(self, name: str) -> str | None:
        return self.model.block_type(self.name_in_model(name))

    def matrix(self, name: str, *, transposed: bool = False) -> Matrix:
        return self.model.matrix(self.name_in_model(name), transposed=transposed)

    def _own_name(self, in_model: str) -> str | None:
        """Return what this part calls the model's tensor `in_model`; None if it is of another part."""
        layer, rest = self._split(in_model)
        names = self.model.shape.tensor_names
        if layer is None or (names.embedding_norm is not None and in_model.startswith(f"{names.embedding_norm}.")):
            of_embedding = layer is not None or in_model == names.embedding
            return in_model if (self.has_embedding if of_embedding else self.has_head) else None
        return f"{names.layers}{layer - self.layers.start}{rest}" if layer in self.layers else None

    def _split(self, name: str) -> tuple[int | None, str]:
        """Return the layer in a tensor's name, None outside the layers, and what follows it in the name."""
        prefix = self.model.shape.tensor_names.layers
        number, dot, rest = name.removeprefix(prefix).partition(".")
        return (int(number), dot + rest) if name.startswith(prefix) and number.isdecimal() else (None, name)


@dataclass(frozen=True, slots=True)
class UnreadModel:
    """A `Model` of a file's header alone: its tensors are zeros of their shapes and types, which take no memory."""

    shape: ModelShape
    tensors: Mapping[str, TensorInfo]  # in BlinkDL's names and orientation

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def has(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> NDArray[Any]:
        info = self.tensors[name]
        return np.broadcast_to(np.zeros((), info.dtype), info.shape)

    def block_type(self, name: str) -> str | None:
        return self.tensors[name].block_type

    def matrix(self, name: str, *, transposed: bool = False) -> NDArray[Any]:
        return self.tensor(name).T if transposed else self.tensor(name)
