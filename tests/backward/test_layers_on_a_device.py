"""The backward pass of layers on a device, compared with the one in numpy; test_gradients.py has more sizes."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from rnn_engine.types import ModelShape
from tests.support.layer_gradients import Case, DeviceLayers, reference_gradients
from tests.support.models import random_model, tiny_shape
from tests.support.older_models import tiny_v6
from tests.support.reference import relative_error

HEADS_OF_20 = tiny_shape(layers=3, width=40, head_size=20, ffn=52)
LENGTHS = ((1,), (200,), (17, 1, 16), (2, 63, 15, 16))


def load(shape: ModelShape, kind: str = "software", *, trains_shifts: bool = True) -> DeviceLayers:
    """Load a random model of `shape`. All have the same limits, so that they share kernels."""
    model = random_model(shape, seed=41)
    return DeviceLayers(model, max_documents=4, kind=kind, trains_shifts=trains_shifts)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (HEADS_OF_20, "software"),
        (HEADS_OF_20, "discrete"),
        (tiny_shape(layers=2, width=64, head_size=64), "software"),
        (tiny_v6(width=64, head_size=64), "software"),
    ],
)
def test_gradients_are_those_of_numpy(shape: ModelShape, kind: str) -> None:
    layers = load(shape, kind)
    with closing(layers.memory):
        for lengths in LENGTHS:
            case = Case.draw(shape, lengths, seed=42)
            streams, expected = reference_gradients(layers.model, case)
            found_streams, found = layers.gradients(case)
            for stream, found_stream in zip(streams, found_streams, strict=True):
                assert relative_error(found_stream, stream) < 1e-4
            for name, values in found.items():
                assert relative_error(values, expected[name]) < 1e-5, (name, lengths)


def test_without_token_shifts_the_other_gradients_are_the_same() -> None:
    case = Case.draw(HEADS_OF_20, (5, 20), seed=46)
    with_shifts, without = (load(HEADS_OF_20, trains_shifts=trains) for trains in (True, False))
    with closing(with_shifts.memory), closing(without.memory):
        _, expected = with_shifts.gradients(case)
        _, found = without.gradients(case)
    np.testing.assert_array_equal(found["wkv"], expected["wkv"])
    assert not found["att_shift"].any()
    assert not found["ffn_shift"].any()


PLANS = {
    "recompute": """\
layer 0 att norm: norm_shift 40 x 1
layer 0 projections: matmul 12 x 5
layer 0 gates: matmul 6 x 5
layer 0 recurrence: wkv7 4 x 2
""",
    "backward": """\
layer 0 value, backward: matmul_transposed 5 x 4
layer 0 key, backward: matmul_transposed 5 x 1
layer 0 ffn norm, backward: norm_shift_backward 40 x 1
layer 0 output, backward: matmul_transposed 5 x 1
layer 0 outputs, backward: wkv7_outputs_backward 4 x 40
layer 0 recurrence rows, backward: wkv_rows_backward 4 x 2
layer 0 recurrence columns, backward: wkv_columns_backward 4 x 2
layer 0 recurrence decay, backward: wkv_decay_backward 4 x 2
layer 0 inputs, backward: wkv7_inputs_backward 4 x 40
layer 0 gates, backward: matmul_transposed 5 x 3
layer 0 projections, backward: matmul_transposed 5 x 6
layer 0 att norm, backward: norm_shift_backward 40 x 1
""",
}


def test_the_plan_of_a_layer() -> None:
    layers = load(tiny_shape())
    with closing(layers.memory):
        layer = layers.layers[0]
        assert layers.show(layer.recompute, num_tokens=40, num_runs=2) == PLANS["recompute"]
        assert layers.show(layer.backward, num_tokens=40, num_runs=2) == PLANS["backward"]
