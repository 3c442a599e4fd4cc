"""The layout of a state on a device: every kind of field is written and read back, on both sides of the shifts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from rnn_engine.forward.slot_states import StateLayout
from rnn_engine.types import FieldKind, StateField
from rnn_engine.versions.shared.layout import RwkvShape


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedShape(RwkvShape):
    """A shape whose state has every kind of field, of awkward sizes."""

    @property
    def state_fields(self) -> tuple[StateField, ...]:
        return (
            StateField("vector", FieldKind.VECTOR, (5,), fill=-1.0),
            StateField("shift", FieldKind.SHIFT, (6,)),
            StateField("matrix", FieldKind.MATRIX, (3, 2, 8)),
            StateField("other shift", FieldKind.SHIFT, (7,)),
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        return {}


SHAPE = MixedShape(version="mixed", num_layers=2, width=6, ffn_width=1, vocab_size=1)
LAYOUT = StateLayout(SHAPE)


def numbered_state() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {
        name: np.arange(values.size, dtype=np.float32).reshape(values.shape) + 1000 * number
        for number, (name, values) in enumerate(SHAPE.initial_state().items())
    }


def test_fields_begin_at_multiples_of_four_floats_and_do_not_overlap() -> None:
    assert LAYOUT.offsets == {"vector": 0, "shift": 8, "matrix": 20, "other shift": 68}
    assert LAYOUT.stride == 84


def test_a_state_comes_out_as_it_went_in() -> None:
    state = numbered_state()
    for name, values in LAYOUT.unpack(LAYOUT.pack(state), side=0).items():
        assert np.array_equal(values, state[name])
        assert values.flags.c_contiguous


@pytest.mark.parametrize(("head", "value", "key"), [(0, 0, 0), (2, 1, 7), (1, 0, 5)])
def test_a_matrix_is_stored_with_four_keys_side_by_side(head: int, value: int, key: int) -> None:
    packed = LAYOUT.pack(numbered_state())[1, LAYOUT.offsets["matrix"] :][: 3 * 2 * 8].reshape(3, 2, 2, 4)
    assert packed[head, key // 4, value, key % 4] == numbered_state()["matrix"][1, head, value, key]


def test_side_1_has_shifts_of_its_own_and_the_rest_is_shared() -> None:
    packed = LAYOUT.pack(numbered_state())
    packed[:, LAYOUT.offsets["shift"] + 6 :][:, :6] = 7
    packed[:, LAYOUT.offsets["other shift"] + 7 :][:, :7] = 8
    unpacked = LAYOUT.unpack(packed, side=1)
    assert (unpacked["shift"] == 7).all()
    assert (unpacked["other shift"] == 8).all()
    assert np.array_equal(unpacked["matrix"], numbered_state()["matrix"])
    assert np.array_equal(unpacked["vector"], numbered_state()["vector"])
