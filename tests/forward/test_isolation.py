"""Values of one run that are not finite change no number of any other run of its batch."""

from __future__ import annotations

import numpy as np
import pytest

from rnn_engine.types import F32, Readout, TokenRun, run_step
from tests.support.gpu import KINDS, make_gpu_runner
from tests.support.models import TensorModel, random_model, tiny_shape

MODEL = random_model(tiny_shape(), seed=6)
NAN_TOKEN = 3
EMBEDDING = MODEL.tensor("emb.weight").copy()
EMBEDDING[NAN_TOKEN] = np.nan
POISONED = TensorModel(MODEL.shape, {**MODEL.tensors, "emb.weight": EMBEDDING})
TOKENS = np.random.default_rng(7).integers(4, MODEL.shape.vocab_size, size=(5, 30)).tolist()
HEALTHY = (0, 3, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length", "weights"), [(1, "f32"), (3, "f32"), (30, "f32"), (3, "int8,activations=int8")])
def test_healthy_runs_are_bitwise_what_they_are_beside_healthy_ones(kind: str, length: int, weights: str) -> None:
    runner = make_gpu_runner(
        POISONED, num_slots=5, max_tokens=150, max_rows=10, num_candidates=8, kind=kind, weights=weights
    )

    def run(*, poisoned: bool) -> tuple[list[Readout], list[list[F32]]]:
        readouts, rows = [], []
        for slot in range(5):
            runner.write_state(slot, None)
        if poisoned:
            state = MODEL.shape.initial_state()
            state["wkv"][:] = 3e38
            runner.write_state(1, state)
        for _ in range(3):
            batch = [TokenRun(slot, TOKENS[slot][:length], rows=1) for slot in range(5)]
            if poisoned:
                batch[2] = TokenRun(2, [NAN_TOKEN] * length, rows=1)
            readouts.append(run_step(runner, batch))
            rows.append([readouts[-1].full_row(slot) for slot in HEALTHY])
        return readouts, rows

    expected, expected_rows = run(poisoned=False)
    states = [runner.read_state(slot) for slot in HEALTHY]
    found, found_rows = run(poisoned=True)
    assert np.array_equal(found_rows, expected_rows)
    for slot, state in zip(HEALTHY, states, strict=True):
        for name, values in runner.read_state(slot).items():
            assert np.array_equal(values, state[name])
    for one, other in zip(found, expected, strict=True):
        assert other.sound.all()
        assert one.sound.tolist() == [True, False, False, True, True]
        for name in ("ids", "logits", "logsumexp", "allowed_logsumexp"):
            assert np.array_equal(getattr(one, name)[list(HEALTHY)], getattr(other, name)[list(HEALTHY)])
    runner.close()
