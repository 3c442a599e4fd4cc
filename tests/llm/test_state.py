"""The arithmetic, files and checks of `rnn_engine.State`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnn_engine import State
from rnn_engine.errors import InvalidRequestError, StateError
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.frozen import freeze_lora, freeze_state
from tests.support.models import tiny_shape
from tests.support.named_states import some_state

SHAPE = tiny_shape()
FILES = StateFiles(SHAPE, "a" * 32)


def a_state(seed: int, files: StateFiles = FILES) -> State:
    return State(some_state(seed, files.shape), files)


def test_arithmetic_is_that_of_all_arrays() -> None:
    one, two = a_state(1), a_state(2)
    mixed = one + 0.5 * (two - one)
    for name, array in mixed.items():
        np.testing.assert_allclose(array, (one[name] + two[name]) / 2, rtol=1e-5, atol=1e-6)
    halved, between = one / 2, one.interpolate(two, 0.5)
    assert (halved - one * 0.5).norm() == 0.0
    assert (between - mixed).norm() < 1e-4 * mixed.norm()
    assert (-one + one).norm() == 0.0
    assert sum([one, two, one]) == one + two + one
    numbers: list[Any] = [np.float32(0.5), np.float64(0.5)]  # numpy's types know nothing of states
    assert all(half * one == one * half == one * 0.5 for half in numbers)


def test_norm_and_cosine_are_those_of_one_long_vector() -> None:
    one, two = a_state(1), a_state(2)
    vectors = [np.concatenate([array.ravel() for array in state.values()]).astype(np.float64) for state in (one, two)]
    norms = [float(np.linalg.norm(vector)) for vector in vectors]
    assert one.norm() == pytest.approx(norms[0])
    assert one.cosine(two) == pytest.approx(float(vectors[0] @ vectors[1]) / norms[0] / norms[1])
    assert one.cosine(-one) == pytest.approx(-1.0)
    assert one.cosine(one - one) == 0.0


def test_states_are_equal_if_their_numbers_are() -> None:
    assert a_state(1) == a_state(1)
    assert a_state(1) != a_state(2)
    assert a_state(1) != "a state"


def test_only_a_copy_can_be_changed() -> None:
    state = a_state(1)
    copy = state.copy()
    copy["wkv"][1] *= 2.0
    assert copy != state
    assert np.array_equal(copy["wkv"][1], 2 * state["wkv"][1])
    assert "may be changed" in repr(copy)
    with pytest.raises(ValueError, match="read-only"):
        state["wkv"][1] = 0.0


def test_a_layer_is_a_view_of_each_field() -> None:
    copy = a_state(1).copy()
    copy.layer(-1)["att_shift"][:] = 3.0
    assert (copy["att_shift"][1] == 3.0).all()


def test_a_number_that_is_not_finite_is_found_when_the_state_is_used() -> None:
    copy = a_state(1).copy()
    copy["wkv"][0, 0, 0, 0] = np.nan
    with pytest.raises(StateError, match="wkv holds 1 NaN"):
        _ = copy.frozen


@pytest.mark.parametrize("form", ["full", "prefab"])
def test_a_file_holds_all_of_a_state(tmp_path: Path, form: str) -> None:
    state = a_state(1)
    state.save(tmp_path / "kept.state", form)  # type: ignore[arg-type]
    assert State.read(tmp_path / "kept.state", FILES) == state


def test_a_tuned_file_holds_the_matrices(tmp_path: Path) -> None:
    state = a_state(1)
    state.save(tmp_path / "kept.st", "tuned")
    read = State.read(tmp_path / "kept.st", FILES)
    assert np.array_equal(read["wkv"], state["wkv"])
    assert not read["att_shift"].any()


def test_misuse_is_refused_in_words(tmp_path: Path) -> None:
    state = a_state(1)
    with pytest.raises(
        InvalidRequestError, match=r"form: 'pdf' is not allowed; expected one of full, tuned, pth, prefab"
    ):
        state.save(tmp_path / "kept", "pdf")  # type: ignore[arg-type]
    with pytest.raises(StateError, match="states of two models"):
        state + a_state(1, StateFiles(SHAPE, "b" * 32))
    with pytest.raises(TypeError, match="expected a State, not int"):
        state + 3  # type: ignore[operator]
    for product in (lambda: state * state, lambda: 2**state, lambda: 1 + state):  # type: ignore[operator]
        with pytest.raises(TypeError, match="unsupported operand"):
            product()
    with pytest.raises(StateError, match="wkv has shape"):
        State({**state, "wkv": state["wkv"][:1]}, FILES)


def test_the_repr_says_what_it_is() -> None:
    assert repr(a_state(1)).startswith("<State of RWKV v7: att_shift [2, 64], wkv [2, 4, 16, 16], ffn_shift [2, 64]; ")


def test_the_lora_of_states_stays_and_two_can_not_be_combined() -> None:
    rows = np.ones((1, 64), np.float32)
    loras = [freeze_lora({"blocks.0.att.key.weight": (factor * rows, rows.T)}, "test") for factor in (1, 2)]
    one, other, twin = (
        State.of(freeze_state(a_state(seed), SHAPE, "test", lora=lora), FILES)
        for seed, lora in enumerate((loras[0], loras[1], loras[0]))
    )
    for made in (one + twin, 0.5 * one, -one, one.interpolate(twin, 0.5), one.copy()):
        assert made.lora is loras[0]
    assert (one + twin)["wkv"].tolist() == (one["wkv"] + twin["wkv"]).tolist()
    for different in (other, a_state(1)):
        with pytest.raises(StateError, match="can't be combined; expected the same one"):
            one + different
        with pytest.raises(StateError, match="can't be combined; expected the same one"):
            different - one
