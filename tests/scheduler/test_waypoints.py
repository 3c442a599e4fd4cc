"""Waypoints of a long prompt: their positions, and the share of the prompt that later prompts save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.requests import GenerateRequest, MixedState, SamplingParams, Started, StateMix
from rnn_engine.scheduler import checkpoints as waypoints
from rnn_engine.scheduler.checkpoints import LEAST_CUT_STEPS, LEAST_LENGTH, LEAST_STEPS, Waypoints, find_break
from rnn_engine.types import F32
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.cache.config import CacheConfig
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, table_logits
from tests.support.models import tiny_shape
from tests.support.scheduler_model import SchedulerModel, Setting, run_random

VOCAB_SIZE = 32
LOGITS = table_logits(VOCAB_SIZE)
WAYPOINT = CheckpointKind.WAYPOINT
MOST = 16  # waypoints of one prompt, as follows from their distances
PIECES = [b"", *(bytes([96 + token]) for token in range(1, 27)), b" ", b".", b"\n", b"? ", b","]
NO_BREAK: Callable[[int, int], int | None] = lambda _earliest, _latest: None  # noqa: E731


def run_prompt(
    length: int,
    saved: int = 0,
    points: Sequence[int] = (),
    runs: Sequence[int] = (64,),
    find: Callable[[int, int], int | None] = NO_BREAK,
    step: int = 64,
) -> tuple[list[int], list[int]]:
    """Return the waypoints of a prompt, and the ends of its runs. The runs take at most `runs` tokens, in turn."""
    ahead = Waypoints(length, saved, points, step, find)
    found, ends = [], [saved]
    while ends[-1] < length:
        stops = [point for point in (*points, length, ahead.cut) if point is not None and point > ends[-1]]
        ends.append(min(ends[-1] + runs[len(ends) % len(runs)], *stops))
        if ahead.submit(ends[-1], is_point=ends[-1] in points or ends[-1] == length):
            found.append(ends[-1])
    assert ahead.cut is None
    return found, ends[1:]


def least_share(length: int, kept: Sequence[int], shared_from: int) -> float:
    """Return the least share that prompts save of their shared tokens, for every length of these."""
    return min(
        max(position for position in kept if position < shared) / shared for shared in range(shared_from, length + 1)
    )


RUNS = st.lists(st.integers(4, 64), min_size=1, max_size=4)
BREAKS = st.sampled_from([NO_BREAK, lambda earliest, _: earliest, lambda earliest, latest: (earliest + latest) // 2])


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    length=st.integers(64 * LEAST_STEPS, 3000) | st.integers(64 * LEAST_STEPS, 20_000),
    runs=RUNS,
    find=BREAKS,
)
def test_whoever_shares_half_of_a_long_prompt_saves_nine_tenths_of_that(
    data: st.DataObject, length: int, runs: list[int], find: Callable[[int, int], int | None]
) -> None:
    points = data.draw(st.lists(st.integers(1, length - 1), max_size=7, unique=True))
    saved = data.draw(st.just(0) | st.integers(0, length - 1))
    found, _ = run_prompt(length, saved, points, runs, find)
    kept = sorted({0, saved, length, *found, *(point for point in points if point > saved)})
    assert 10 * least_share(length, kept, max((length + 1) // 2, saved + 1)) >= 9
    assert len(found) <= MOST


@settings(max_examples=60, deadline=None)
@given(data=st.data(), length=st.integers(64 * LEAST_CUT_STEPS, 64 * LEAST_STEPS - 1), runs=RUNS, find=BREAKS)
def test_whoever_shares_nearly_all_of_a_shorter_one_saves_nine_tenths_of_that(
    data: st.DataObject, length: int, runs: list[int], find: Callable[[int, int], int | None]
) -> None:
    points = data.draw(st.lists(st.integers(1, length - 1), max_size=3, unique=True))
    found, ends = run_prompt(length, 0, points, runs, find)
    assert 10 * least_share(length, sorted({*found, *points, length}), 19 * length // 20 + 1) >= 9
    assert len(found) <= MOST
    if runs == [64] and not points:
        assert len(ends) <= -(-length // 64) + 1


@pytest.mark.parametrize("step", [16, 64, 256])
@pytest.mark.parametrize("length", [*range(1, LEAST_LENGTH, 17), LEAST_LENGTH - 1])
def test_a_short_prompt_has_none(length: int, step: int) -> None:
    assert run_prompt(length, runs=[step], step=step)[0] == []


@pytest.mark.parametrize("length", [256, 300, 512, 513, 900, 1023])
def test_a_prompt_of_few_steps_keeps_the_ends_of_these_alone(length: int) -> None:
    found, ends = run_prompt(length, runs=[256], step=256)
    assert found == [end for end in range(256, length, 256) if end + 256 > length // 2]
    assert len(ends) == -(-length // 256)


def test_a_prompt_that_goes_on_from_a_kept_state_has_few() -> None:
    assert run_prompt(4000, saved=3800)[0] == []
    assert run_prompt(4000, saved=3000)[0] == [3320, 3640]
    assert run_prompt(500, saved=300)[0] == [364, 428, 492]


def test_other_states_that_are_kept_spare_waypoints() -> None:
    alone, _ = run_prompt(1300, runs=[2000])
    assert alone == [649, 721, 801, 890, 988, 1097, 1218]
    found, _ = run_prompt(1300, points=[649, 720, 800, 888, 980, 1280], runs=[2000])
    assert found == [1088, 1208]


def test_none_is_kept_before_the_promise_begins() -> None:
    found, _ = run_prompt(30_000)
    assert found[0] >= 13_500


@pytest.mark.parametrize(("length", "step"), [(1281, 64), (2000, 64), (6000, 256), (20_000, 256), (100_000, 256)])
def test_where_steps_are_short_beside_a_prompt_waypoints_take_no_more_of_them(length: int, step: int) -> None:
    found, ends = run_prompt(length, runs=[step], step=step)
    assert len(found) >= 7
    assert len(ends) <= -(-length // step) + 1


def test_waypoints_are_far_from_each_other_whatever_the_runs_are() -> None:
    for length in (5000, 600):
        found, _ = run_prompt(length, runs=[7])
        assert all(later - earlier >= min(earlier // 20, 32) for earlier, later in pairwise(found))


def test_a_run_is_cut_at_the_end_of_a_line_else_of_a_sentence() -> None:
    def tokens(text: bytes) -> list[int]:
        return [PIECES.index(bytes([byte])) for byte in text]

    def cut(text: bytes, earliest: int) -> int | None:
        return find_break(tokens(text), PIECES.__getitem__, earliest, len(text))

    assert cut(b"a.b\nc.d,e", 1) == 4
    assert cut(b"a.b\nc.d,e", 5) == 6
    assert cut(b"a.b\nc.d,e", 7) is None
    assert cut(b"a.", 2) == 2
    assert find_break([1, 30, 2], PIECES.__getitem__, 1, 3) == 2  # "? "
    assert find_break([1, 0, 2], lambda _token: b"", 1, 3) is None


def words(count: int, first: int = 0) -> list[int]:
    """Return a text of sentences and lines with few repeated parts."""
    return [
        1 + (number * number + number // 7) % 26 if number % 9 else 28 + number % 2
        for number in range(first, first + count)
    ]


class Served:
    """A scheduler with room in its cache for all states."""

    def __init__(self, *, num_bytes: int = 1 << 26, run_ahead: bool = False) -> None:
        self.runner = FakeRunner(LOGITS, tiny_shape(vocab=VOCAB_SIZE), max_tokens=96)
        self.cache = make_cache(self.runner.shape, "a model", self.runner, CacheConfig(host_capacity=num_bytes))
        self.clients = Clients(self.runner, PIECES.__getitem__, self.cache, run_ahead)

    def ask(self, *requests: GenerateRequest) -> list[int]:
        """Ask all at once; return the numbers of cached tokens. Each must get the same answer as alone."""
        keys = [self.clients.send(request) for request in requests]
        self.clients.run()
        for key, request in zip(keys, requests, strict=True):
            expected = run_alone(request, LOGITS, PIECES.__getitem__, others=[() for _ in request.members[1:]])
            assert_heard(self.clients.heard[key], expected)
        return [
            event.cached_tokens
            for key in keys
            for event in self.clients.heard[key].events
            if isinstance(event, Started)
        ]

    def waypoints(self) -> list[int]:
        return sorted(one.length for one in self.cache.checkpoints() if one.kind is WAYPOINT)


def ask(prompt: Sequence[int]) -> GenerateRequest:
    return GenerateRequest(prompt, max_tokens=2, stop_tokens=(), sampling=SamplingParams(temperature=0.0, seed=0))


@settings(max_examples=15, deadline=None)
@given(
    length=st.integers(960, 2500),
    parts=st.lists(st.floats(0.5, 1.0), min_size=1, max_size=4),
    own=st.integers(0, 60),
    at_once=st.booleans(),
    run_ahead=st.booleans(),
)
def test_prompts_that_share_the_most_part_of_one_save_nine_tenths_of_that(
    length: int, parts: list[float], own: int, at_once: bool, run_ahead: bool
) -> None:
    served = Served(run_ahead=run_ahead)
    text = words(length)
    assert served.ask(ask(text)) == [0]
    shared = [min(max(int(part * length), (length + 1) // 2), length) for part in parts]
    later = [ask([*text[:count], *([0] * own)]) for count in shared]
    found = served.ask(*later) if at_once else [saved for request in later for saved in served.ask(request)]
    assert all(10 * saved >= 9 * count for saved, count in zip(found, shared, strict=True))


def test_a_waypoint_that_was_used_is_one_no_longer() -> None:
    served = Served()
    served.ask(ask(words(1500)))
    before = served.waypoints()
    [saved] = served.ask(ask([*words(1100), 0, 0]))
    assert saved in before
    assert served.waypoints() == [position for position in before if position != saved]
    kinds = {one.length: one.kind for one in served.cache.checkpoints()}
    assert kinds[saved] is CheckpointKind.BRANCH


def test_prompts_that_arrive_together_wait_past_waypoints_for_where_they_part() -> None:
    served = Served()
    text = words(1500)
    assert sorted(served.ask(*(ask([*text[:1400], 1 + number, 0]) for number in range(4)))) == [0, 1400, 1400, 1400]


def test_a_prompt_that_is_scored_keeps_none_in_what_is_scored() -> None:
    served = Served()
    scored = replace(ask(words(1500)), score_from=1301, logprobs=0)
    served.ask(scored)
    assert served.waypoints()
    assert max(served.waypoints()) < 1300
    assert served.ask(scored) == [1300]
    assert Served().ask(replace(scored, score_from=0)) == [0]


def test_the_members_of_a_mix_keep_waypoints_of_their_own() -> None:
    served = Served()
    mixed = replace(ask(words(1500)), mix=StateMix(0.5, [MixedState(0.5)], "probability"))
    served.ask(mixed)
    assert served.ask(replace(mixed, prompt=[*words(1400), 0]))[0] >= 1260


def test_a_cache_without_room_keeps_none() -> None:
    served = Served(num_bytes=0)
    assert served.ask(ask(words(1500)), ask(words(1400))) == [0, 0]
    assert served.waypoints() == []


@pytest.mark.parametrize("least_steps", [1, 100])
@pytest.mark.parametrize("cache_states", [3, 40])
@pytest.mark.parametrize("setting", [Setting(), Setting(run_ahead=True, draws=3), Setting(mixes=True)])
def test_a_long_run_with_waypoints_in_all_prompts_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, cache_states: int, least_steps: int, setting: Setting
) -> None:
    monkeypatch.setattr(waypoints, "LEAST_LENGTH", 24)
    monkeypatch.setattr(waypoints, "LEAST_STEPS", least_steps)
    monkeypatch.setattr(waypoints, "LEAST_CUT_STEPS", 1)
    kinds = []

    def insert(self: StateCache, *path: Any, kind: CheckpointKind, logits: F32 | None = None) -> bool:  # noqa: ANN401
        kinds.append(kind)
        return kept_insert(self, *path, kind=kind, logits=logits)

    kept_insert = StateCache.insert
    monkeypatch.setattr(StateCache, "insert", insert)
    model = SchedulerModel(replace(setting, cache_states=cache_states))
    run_random(model, seed=5, operations=250, check_every=5)
    assert kinds.count(WAYPOINT) > 20
