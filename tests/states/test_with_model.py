"""A model's logits are the same if its state was computed, or came out of any tier of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.types import F32, TokenRun, run_step
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.cache.tiers.tier import SlotPool
from rnn_engine_states.frozen import Precision
from tests.support.models import random_model, tiny_shape
from tests.support.toy_states import look_up

SHAPE = tiny_shape(layers=3, width=32, head_size=16)
STATE_BYTES = 4 * 3 * (2 * 32 + 2 * 16 * 16)
ROOT = "none"
TURN = [int(token) for token in np.random.default_rng(1).integers(0, 96, 60)]
NEXT = [5, 17, 44, 90]


class Session:
    """A runner with two live slots and two slabs, and a cache that may hold one state on the host."""

    def __init__(self, folder: Path, precision: Precision = "f32") -> None:
        self.runner = load_runner(random_model(SHAPE, seed=3), "cpu", RunnerSize(4, max_tokens=256))
        host = STATE_BYTES + 4 * SHAPE.vocab_size
        disk = DiskConfig(folder, 1 << 20, precision, background_bytes=0)
        pool = SlotPool(self.runner, first_slot=2, num_slabs=2)
        self.cache = make_cache(SHAPE, "model", self.runner, CacheConfig(host, precision, disk), pool)

    def run(self, slot: int, tokens: Sequence[int]) -> F32:
        """Advance a slot, and return the logits [V] after the last token."""
        return run_step(self.runner, [TokenRun(slot, tokens, rows=1)]).full_row(0).copy()

    def uncached(self, tokens: Sequence[int]) -> F32:
        self.runner.write_state(0, None)
        return self.run(0, tokens)

    def keep(self, tokens: Sequence[int]) -> None:
        logits = self.uncached(tokens)
        assert self.cache.insert(ROOT, tokens, 0, kind=CheckpointKind.PROMPT_END, logits=logits)

    def push_down(self, times: int) -> None:
        """Insert longer prompts, so that earlier states give way tier by tier."""
        for number in range(times):
            self.keep([number, *TURN, *TURN, *TURN])

    def cached(self, tokens: Sequence[int], tier: str) -> F32:
        """Return the logits after `tokens`, going on from the state that the cache has in `tier`."""
        match = look_up(self.cache, tokens)
        assert match.tier is tier
        if match.logits is not None:
            self.cache.release(match)
            return match.logits
        self.cache.restore(match, 1)
        return self.run(1, tokens[match.saved :])


@pytest.mark.parametrize(("pushed", "tier"), [(0, "device"), (2, "host"), (3, "disk")])
@pytest.mark.parametrize("prompt", [TURN, [*TURN, *NEXT]], ids=["exact repeat", "longer prompt"])
def test_logits_are_the_same_from_every_tier(tmp_path: Path, prompt: list[int], pushed: int, tier: str) -> None:
    session = Session(tmp_path)
    session.keep(TURN)
    session.push_down(pushed)
    assert np.array_equal(
        session.cached(prompt, tier), session.uncached(TURN) if prompt == TURN else _two_steps(session)
    )


def _two_steps(session: Session) -> F32:
    session.uncached(TURN)
    return session.run(0, NEXT)


def test_logits_are_the_same_after_a_restart(tmp_path: Path) -> None:
    before = Session(tmp_path)
    before.keep(TURN)
    before.cache.close()
    after = Session(tmp_path)
    expected = _two_steps(after)
    assert np.array_equal(after.cached([*TURN, *NEXT], "disk"), expected)


def test_a_branch_inside_a_turn_goes_on_from_its_cut(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.keep(TURN)
    branch = [*TURN[:40], *NEXT]
    assert session.cache.look_up(ROOT, branch).known == 40
    session.uncached(TURN[:40])
    assert session.cache.insert(ROOT, TURN[:40], 0, kind=CheckpointKind.BRANCH)
    expected = session.run(0, NEXT)
    assert np.array_equal(session.cached(branch, "device"), expected)


def test_states_in_f16_change_log_probabilities_by_less_than_a_hundredth(tmp_path: Path) -> None:
    session = Session(tmp_path, "f16")
    session.keep(TURN)
    session.push_down(3)
    expected = _two_steps(session)
    difference = np.abs(_log_softmax(session.cached([*TURN, *NEXT], "disk")) - _log_softmax(expected)).max()
    assert 0 < difference < 1e-2


def _log_softmax(logits: F32) -> F32:
    shifted = logits - logits.max()
    log_probabilities: F32 = shifted - np.log(np.exp(shifted).sum())
    return log_probabilities
