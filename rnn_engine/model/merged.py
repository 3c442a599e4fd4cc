"""`MergedModel`: a model file that is read with LoRAs merged into its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from rnn_engine.model.fingerprint import CountParts, ignore_parts, with_settings
from rnn_engine.model.layout import TensorSpec
from rnn_engine.model.lora import Lora, LoraChoice, open_lora
from rnn_engine.model.model_file import ModelFile
from rnn_engine.quantised import Blocks
from rnn_engine.quantised.rows import Matrix
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.types import F32, Model, ModelShape

_MERGED: Final = np.dtype(np.float32)


class OpenModel(Model, Protocol):
    """The protocol of an open model file, with or without LoRAs merged into it; see `ModelFile`."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def num_bytes(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def identify(self, progress: CountParts = ..., /) -> str: ...

    def blocks(self, name: str, /) -> Blocks | None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class MergedModel:
    """An open model that applies LoRAs, one after another, to each tensor that it reads. Implements `OpenModel`.

    A changed tensor is float32; the others have the type in the file. Holds one tensor at a time.
    """

    def __init__(self, file: ModelFile, choices: Sequence[LoraChoice], specs: Sequence[TensorSpec]) -> None:
        """Open the LoRAs of `choices` for the model in `file`, which `close` closes, as does an error here.

        Raises ModelError if a LoRA can't be read or does not fit.
        """
        self.shape: ModelShape = file.shape
        self.path = file.path
        self.names = file.names
        self._file = file
        with ExitStack() as undo:
            undo.callback(file.close)
            self._loras: list[Lora] = []
            for choice in choices:
                lora = open_lora(choice, specs, file.tensors)
                undo.callback(lora.close)
                self._loras.append(lora)
            self._opened = undo.pop_all()
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(info.shape, _MERGED) if self._loras_of(name) else info
            for name, info in file.tensors.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_bytes(self) -> int:
        """The size of the model's file in bytes, without the LoRAs."""
        return self._file.num_bytes

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the merged weights; see `identify`."""
        return self.identify()

    def identify(self, progress: CountParts = ignore_parts) -> str:
        """Return a digest of the file's fingerprint and the LoRAs', in their order; see `ModelFile.identify`."""
        return with_settings(self._file.identify(progress), "; ".join(lora.fingerprint for lora in self._loras))

    def has(self, name: str) -> bool:
        return self._file.has(name)

    def tensor(self, name: str) -> NDArray[Any]:
        """Read the tensor that BlinkDL calls `name`, with the LoRAs merged into it; see `ModelFile.tensor`.

        Raises ModelError if a LoRA has changed on disk.
        """
        tensor = self._file.tensor(name)
        loras = self._loras_of(name)
        if not loras:
            return tensor
        merged: F32 = tensor.astype(_MERGED)
        for lora in loras:
            lora.merge(name, merged)
        merged.flags.writeable = False
        return merged

    def matrix(self, name: str, *, transposed: bool = False) -> Matrix:
        """Return a tensor for reading by rows; see `Model.matrix`. One that a LoRA changes is read at once."""
        if not self._loras_of(name):
            return self._file.matrix(name, transposed=transposed)
        return self.tensor(name).T if transposed else self.tensor(name)

    def block_type(self, name: str) -> str | None:
        """Return the name of a tensor's quantised block format; None for plain numbers, and if a LoRA changes it."""
        return self.tensors[name].block_type

    def blocks(self, name: str) -> Blocks | None:
        """Read a matrix in its quantised blocks; None if a LoRA changes it. See `ModelFile.blocks`."""
        return None if self._loras_of(name) else self._file.blocks(name)

    def close(self) -> None:
        """Close the model's file and the LoRAs. Idempotent."""
        self._opened.close()

    def _loras_of(self, name: str) -> list[Lora]:
        return [lora for lora in self._loras if lora.changes(name)]
