"""`State`, the recurrent state of one sequence as numpy arrays, which calls of `LLM` and `Model` take and return."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, get_args

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import StateError, check_choice, is_number
from rnn_engine.files import output_file
from rnn_engine.types import F32, LoraPairs, ModelShape
from rnn_engine_states.files.exchange import ExportForm, StateFiles
from rnn_engine_states.frozen import FrozenState, freeze_state


class State(Mapping[str, F32]):
    """The recurrent state of one sequence: a mapping from field names to arrays [L, ...] in f32, for L layers.

    From RWKV-5 on, the fields are `att_shift` [L, D], `wkv` [L, H, value, key] and `ffn_shift` [L, D], which
    QRWKV6 and ARWKV lack.

    The states that calls return are read-only, so that they can be shared; `copy` returns one whose arrays may be
    changed in place. States of the same model can be added, subtracted and scaled: `poet + 0.3 * (pirate - poet)`.
    The result keeps their LoRA; those of different LoRAs can't be combined.
    Two states are equal if all their numbers are.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[np.floating]],
        files: StateFiles,
        *,
        logits: F32 | None = None,
        num_tokens: int | None = 0,
        last_tokens: Sequence[int] = (),
    ) -> None:
        """Make a read-only state of a copy of `arrays`; `files` is that of the model, such as `LLM.state_files`.

        `logits` [V] are those after the last token, if they are known. `num_tokens` tokens led to the state (None: it
        is not known how many), and `last_tokens` are the last of them. Raises StateError if the arrays do not fit the
        model, or hold a number that is not finite.
        """
        frozen = freeze_state(
            arrays, files.shape, "state", logits=logits, num_tokens=num_tokens or 0, last_tokens=last_tokens
        )
        self._set(frozen, files)

    def _set(self, frozen: FrozenState, files: StateFiles) -> None:
        self._files = files
        self._arrays = dict(frozen.state)
        self._lora = frozen.lora
        self._frozen: FrozenState | None = frozen  # None: the arrays may have been changed

    @classmethod
    def of(cls, frozen: FrozenState, files: StateFiles) -> Self:
        """Return the state that shares the arrays of `frozen`."""
        state = cls.__new__(cls)
        state._set(frozen, files)
        return state

    @classmethod
    def read(cls, path: str | Path, files: StateFiles, *, any_model: bool = False) -> Self:
        """Read a state from a file in any supported format. Raises StateError if it does not fit the model.

        A file that says that its state was made for another model is refused unless `any_model` is true.
        """
        path = Path(path)
        return cls.of(files.freeze(files.read(path, any_model=any_model), str(path)), files)

    @property
    def shape(self) -> ModelShape:
        """The sizes of the model to which the state belongs."""
        return self._files.shape

    @property
    def model(self) -> str:
        """The fingerprint of the model's weights."""
        return self._files.model

    @property
    def num_tokens(self) -> int | None:
        """How many tokens led to the state: 0 for a tuned or computed one, None if it is not known how many."""
        return self.frozen.num_tokens

    @property
    def logits(self) -> F32 | None:
        """The logits [V] after the last token, if they are known."""
        return self.frozen.logits

    @property
    def lora(self) -> LoraPairs | None:
        """The LoRA with which sequences run that start from the state, if it has one."""
        return self._lora

    @property
    def digest(self) -> str:
        """A digest of the state's numbers: equal for equal states."""
        return self.frozen.digest

    @property
    def frozen(self) -> FrozenState:
        """The state as `Engine` takes it. Raises StateError if a number was changed to one that is not finite."""
        return self._frozen or freeze_state(self._arrays, self.shape, "state", lora=self._lora)

    def layer(self, number: int) -> dict[str, F32]:
        """Return views of one layer's arrays by field name; negative numbers count from the last layer."""
        return {name: array[number] for name, array in self._arrays.items()}

    def copy(self) -> Self:
        """Return a copy whose arrays may be changed in place."""
        state = type(self).of(self.frozen, self._files)
        state._arrays = {name: array.copy() for name, array in self._arrays.items()}
        state._frozen = None
        return state

    fork = copy

    def save(self, path: str | Path, form: ExportForm = "full") -> None:
        """Write the state to a file, atomically.

        The form "full" holds everything, bound to the model; "tuned" the matrices alone, as `time_state` tensors in
        ai00's layout, and "pth" the same as torch's file in BlinkDL's layout; "prefab" is ai00's CBOR file. Raises
        OSError if the file can't be written, and StateError if the form can't have the model's states.
        """
        path = Path(path)
        check_choice("form", form, get_args(ExportForm))
        with output_file(path) as file:
            for part in self._files.export(form, path.stem, uuid.uuid4(), self.frozen):
                file.write(part)

    def norm(self) -> float:
        """Return the Euclidean norm of all numbers of the state."""
        return math.sqrt(self.dot(self))

    def dot(self, other: State) -> float:
        """Return the sum of the products of both states' numbers."""
        self._check_same(other)
        return math.fsum(float(np.vdot(array.astype(np.float64), other[name])) for name, array in self.items())

    def cosine(self, other: State) -> float:
        """Return the cosine of the angle between both states as vectors: 1 for the same direction, 0 if one is zero."""
        norms = self.norm() * other.norm()
        return self.dot(other) / norms if norms > 0.0 else 0.0

    def interpolate(self, other: State, weight: float) -> Self:
        """Return the state (1 - weight) * self + weight * other."""
        return self._map(lambda one, two: (1.0 - weight) * one + weight * two, other)

    def __getitem__(self, field: str) -> F32:
        return self._arrays[field]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __add__(self, other: State) -> Self:
        return self._map(np.add, other)

    def __sub__(self, other: State) -> Self:
        return self._map(np.subtract, other)

    def __radd__(self, zero: int) -> Self:
        return self if zero == 0 else NotImplemented  # `sum` begins with 0

    def __mul__(self, factor: float) -> Self:
        if not is_number(factor):
            return NotImplemented
        return self._map(lambda one, _: one * float(factor), self)

    __rmul__ = __mul__
    __array_ufunc__ = None  # numpy's numbers leave products with states to `__rmul__`

    def __truediv__(self, divisor: float) -> Self:
        return self * (1.0 / divisor)

    def __neg__(self) -> Self:
        return self * -1.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.model == other.model and self.digest == other.digest

    __hash__ = None  # type: ignore[assignment]  # its arrays may change

    def __repr__(self) -> str:
        shape = self.shape
        fields = ", ".join(f"{name} {list(array.shape)}" for name, array in self.items())
        size = sum(array.nbytes for array in self._arrays.values())
        changeable = "" if self._frozen is not None else ", may be changed"
        return f"<State of RWKV {shape.version}: {fields}; {size / 1e6:.3g} MB, norm {self.norm():.4g}{changeable}>"

    def _map(self, function: Callable[[F32, F32], F32], other: State) -> Self:
        """Return the read-only state whose arrays are `function` of this state's and another one's."""
        self._check_same(other)
        loras = [None if each is None else each.digest for each in (self.lora, other.lora)]
        if loras[0] != loras[1]:
            raise StateError(
                f"states with the LoRAs {loras[0]} and {loras[1]} can't be combined; expected the same one"
            )
        arrays = {name: function(array, other[name]) for name, array in self.items()}
        return type(self).of(freeze_state(arrays, self.shape, "state", lora=self.lora), self._files)

    def _check_same(self, other: State) -> None:
        if not isinstance(other, State):
            raise TypeError(f"expected a State, not {type(other).__name__}")
        if other.model != self.model:
            raise StateError(
                f"states of two models can't be combined: RWKV {self.shape.version} with the weights {self.model}, and "
                f"RWKV {other.shape.version} with {other.model}"
            )
