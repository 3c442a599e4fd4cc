"""Look-ups, restored states, and moves between tiers when they are full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.types import F32, PendingState
from rnn_engine_states.cache.cache import Match, StateCache, make_cache
from rnn_engine_states.cache.checkpoint import CheckpointKind, MissReason, make_root
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.toy_states import ROOT, ToyDevice, keep, look_up, same, toy_logits, toy_shape, toy_state

SHAPE = toy_shape()
STATE = 384  # bytes
LOGITS = 96
ROOMY = CacheConfig(host_capacity=1 << 20)
PROMPT = list(range(1, 21))


def make(config: CacheConfig = ROOMY, slabs: int = 0) -> tuple[StateCache, ToyDevice]:
    device = ToyDevice(SHAPE, num_slots=2, num_slabs=slabs)
    return make_cache(SHAPE, "model", device, config, device if slabs else None), device


def disk(folder: Path, capacity: int = 1 << 20) -> DiskConfig:
    return DiskConfig(folder, capacity, background_bytes=0)


def used(cache: StateCache) -> dict[str, int]:
    return {tier.tier: tier.used for tier in cache.stats().tiers}


def copies(cache: StateCache, tokens: Sequence[int]) -> set[str]:
    match = look_up(cache, tokens)
    cache.release(match)
    assert match.checkpoint is not None
    return set(match.checkpoint.sizes)


def restored(cache: StateCache, device: ToyDevice, match: Match) -> bool:
    """Restore a match of PROMPT-like tokens, and return True if the state is right."""
    assert match.checkpoint is not None
    tokens = match.checkpoint.known_place().tokens()
    cache.restore(match, 1)
    return same(device.read_state(1), toy_state(SHAPE, np.frombuffer(tokens, np.uint32).tolist()))


def test_an_exact_repeat_gives_state_and_logits_back() -> None:
    cache, device = make()
    keep(cache, device, PROMPT)
    match = look_up(cache, PROMPT)
    assert (match.saved, match.known, match.miss, match.tier) == (20, 20, None, "host")
    assert match.logits is not None
    assert np.array_equal(match.logits, toy_logits(SHAPE, PROMPT))
    assert restored(cache, device, match)


def test_a_longer_prompt_goes_on_from_the_longest_prefix() -> None:
    cache, device = make()
    keep(cache, device, PROMPT[:5])
    keep(cache, device, PROMPT[:12])
    match = look_up(cache, PROMPT)
    assert (match.saved, match.known, match.logits) == (12, 12, None)
    cache.restore(match, 1)
    device.run(PROMPT[12:], slot=1)
    assert same(device.read_state(1), toy_state(SHAPE, PROMPT))


def test_a_prompt_that_leaves_a_path_is_told_where_and_goes_on_from_before() -> None:
    cache, device = make()
    keep(cache, device, PROMPT[:5])
    keep(cache, device, PROMPT)
    match = look_up(cache, [*PROMPT[:15], 99, 98])
    assert (match.saved, match.known) == (5, 15)
    cache.release(match)


def test_logits_kept_are_safe_from_both_sides() -> None:
    cache, device = make()
    device.start(PROMPT)
    row: F32 = toy_logits(SHAPE, PROMPT)
    cache.insert(ROOT, PROMPT, 0, kind=CheckpointKind.PROMPT_END, logits=row)
    row[:] = -1
    match = look_up(cache, PROMPT)
    assert match.logits is not None
    assert np.array_equal(match.logits, toy_logits(SHAPE, PROMPT))
    with pytest.raises(ValueError, match="read-only"):
        match.logits[0] = 1


def test_a_checkpoint_without_logits_serves_longer_prompts_only() -> None:
    cache, device = make()
    keep(cache, device, PROMPT[:5])
    keep(cache, device, PROMPT, logits=False)
    exact = look_up(cache, PROMPT)
    assert exact.saved == 5
    longer = look_up(cache, [*PROMPT, 50])
    assert longer.saved == 20
    cache.release(exact)
    cache.release(longer)
    keep(cache, device, PROMPT, logits=True)
    assert look_up(cache, PROMPT).logits is not None


@pytest.mark.parametrize(("limit", "saved"), [(None, 20), (20, 20), (19, 12), (12, 12), (11, 5), (4, 0), (0, 0)])
def test_nothing_longer_than_the_limit_is_found(limit: int | None, saved: int) -> None:
    cache, device = make()
    for length in (5, 12, 20):
        keep(cache, device, PROMPT[:length])
    assert cache.peek(ROOT, PROMPT, limit) == saved
    match = look_up(cache, PROMPT, limit)
    assert (match.saved, match.known) == (saved, 20)
    assert match.miss is (None if saved else MissReason.BEYOND_LIMIT)
    assert (match.logits is not None) == (saved == 20)
    cache.release(match)


def test_a_peek_counts_and_locks_nothing() -> None:
    cache, device = make()
    keep(cache, device, PROMPT[:5])
    keep(cache, device, PROMPT, logits=False)
    before = cache.stats()
    assert [cache.peek(ROOT, PROMPT), cache.peek(ROOT, [*PROMPT, 9]), cache.peek("tuned", PROMPT)] == [5, 20, 0]
    assert cache.stats() == before
    assert cache.drop_state(ROOT) == 2


def test_a_state_is_dropped_in_every_scope() -> None:
    cache, device = make()
    roots = [make_root(state, scope) for state in ("tuned", "tuned2") for scope in ("", "ann", "ann/1f", "anna")]
    assert len(set(roots)) == len(roots)
    for root in roots:
        keep(cache, device, PROMPT, root=root)
    shown = {scope: {one.root for one in cache.checkpoints(scope)} for scope in ("", "ann", "anna", "bob")}
    assert shown["ann"] == {"tuned/ann", "tuned/ann/1f", "tuned2/ann", "tuned2/ann/1f"}
    assert (shown[""], shown["anna"], shown["bob"]) == ({"tuned", "tuned2"}, {"tuned/anna", "tuned2/anna"}, set())
    assert cache.drop_state("tuned") == 4
    assert {one.root for one in cache.checkpoints()} == set(roots[4:])


def test_roots_share_nothing() -> None:
    cache, device = make()
    keep(cache, device, PROMPT, root="tuned")
    assert look_up(cache, PROMPT).miss is MissReason.NO_PATHS
    assert look_up(cache, PROMPT, root="tuned").saved == 20


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([99, 1], MissReason.UNKNOWN_PROMPT),
        ([1, 2, 3], MissReason.NO_CHECKPOINT),
        ([*PROMPT[:12], 99], MissReason.NO_CHECKPOINT),
        ([40, 41, 42, 43], MissReason.NO_LOGITS),
        ([30, 31, 32, 33], MissReason.EVICTED),
    ],
)
def test_a_miss_says_why(prompt: list[int], reason: MissReason) -> None:
    cache, device = make(CacheConfig(host_capacity=STATE + LOGITS + STATE))
    keep(cache, device, [30, 31, 32])
    keep(cache, device, [40, 41, 42, 43], logits=False)
    keep(cache, device, PROMPT)  # the first state must make room
    match = look_up(cache, prompt)
    assert (match.saved, match.miss) == (0, reason)
    stats = cache.stats()
    assert stats.misses[reason] == 1
    assert sum(stats.misses.values()) == stats.look_ups == 1


def test_an_empty_cache_says_so_and_an_empty_path_is_refused() -> None:
    cache, _ = make()
    assert look_up(cache, PROMPT).miss is MissReason.NO_PATHS
    with pytest.raises(ValueError, match="at least one token"):
        cache.insert(ROOT, [], 0, kind=CheckpointKind.PROMPT_END)


def test_a_miss_can_not_be_restored_nor_a_match_twice() -> None:
    cache, device = make()
    with pytest.raises(ValueError, match="nothing to restore"):
        cache.restore(look_up(cache, PROMPT), 0)
    keep(cache, device, PROMPT)
    match = look_up(cache, PROMPT)
    cache.restore(match, 1)
    with pytest.raises(ValueError, match="nothing to restore"):
        cache.restore(match, 1)


def test_a_full_tier_hands_its_weakest_down_and_a_hit_brings_it_up(tmp_path: Path) -> None:
    cache, device = make(CacheConfig(host_capacity=STATE + LOGITS, disk=disk(tmp_path)), slabs=1)
    prompts = [[10 * n + 1, 10 * n + 2] for n in range(3)]
    for prompt in prompts:
        keep(cache, device, prompt)
    assert [copies(cache, prompt) for prompt in prompts] == [{"disk"}, {"host"}, {"device"}]
    assert used(cache) == {"device": STATE, "host": STATE + LOGITS, "disk": folder_bytes(tmp_path)}

    match = look_up(cache, prompts[0])
    assert match.tier == "disk"
    assert match.logits is not None
    assert np.array_equal(match.logits, toy_logits(SHAPE, prompts[0]))
    assert restored(cache, device, match)
    assert copies(cache, prompts[0]) == {"device", "disk"}
    assert copies(cache, prompts[2]) == {"host"}
    assert copies(cache, prompts[1]) == {"disk"}
    for prompt in prompts:
        assert restored(cache, device, look_up(cache, prompt))


def test_a_copy_below_lets_the_one_above_go_without_a_transfer() -> None:
    cache, device = make(slabs=1)
    keep(cache, device, [1, 2])
    keep(cache, device, [3, 4])  # moves the first to the host
    cache.restore(look_up(cache, [1, 2]), 1)  # and back: now in both
    assert copies(cache, [1, 2]) == {"device", "host"}
    before = cache.stats()
    keep(cache, device, [5, 6])
    after = cache.stats()
    assert copies(cache, [1, 2]) == {"host"}
    assert [tier.demotions for tier in after.tiers] == [tier.demotions for tier in before.tiers]


def test_what_gives_way_everywhere_stays_as_a_ghost_entry() -> None:
    cache, device = make(CacheConfig(host_capacity=STATE + LOGITS))
    keep(cache, device, PROMPT)
    keep(cache, device, [50, 51])
    stats = cache.stats()
    assert (stats.checkpoints, stats.ghosts) == (1, 1)
    match = look_up(cache, [*PROMPT[:7], 99])
    assert (match.saved, match.known) == (0, 7)
    assert keep(cache, device, PROMPT)
    assert look_up(cache, PROMPT).saved == 20


def test_ghost_entries_are_bounded_in_tokens() -> None:
    cache, device = make(CacheConfig(host_capacity=STATE + LOGITS, max_mark_tokens=25))
    for start in (100, 200, 300, 400):
        keep(cache, device, range(start, start + 10))
    stats = cache.stats()
    assert (stats.checkpoints, stats.ghosts) == (1, 2)
    assert look_up(cache, [100, 101]).known == 0
    assert look_up(cache, [200, 201]).known == 2


def test_a_mark_that_prompts_pass_outlives_others() -> None:
    cache, device = make(CacheConfig(host_capacity=STATE + LOGITS, max_mark_tokens=25))
    for start in (100, 200, 300):
        keep(cache, device, range(start, start + 10))
    assert look_up(cache, list(range(100, 115))).known == 10
    keep(cache, device, range(400, 410))
    assert look_up(cache, [200, 201]).known == 0
    assert look_up(cache, [100, 101]).known == 2


def test_a_prompt_longer_than_all_marks_may_be_is_stored_or_forgotten() -> None:
    cache, device = make(CacheConfig(host_capacity=STATE + LOGITS, max_mark_tokens=5))
    assert keep(cache, device, PROMPT)
    match = look_up(cache, PROMPT)
    assert not keep(cache, device, [50, 51, 52, 53, 54, 55])
    assert match.saved == 20
    assert look_up(cache, [50]).known == 0


def test_locked_checkpoints_stay_and_an_insert_may_find_no_room() -> None:
    cache, device = make(CacheConfig(host_capacity=2 * (STATE + LOGITS)))
    keep(cache, device, [1, 2])
    keep(cache, device, [3, 4])
    first, second = look_up(cache, [1, 2]), look_up(cache, [3, 4])
    assert not keep(cache, device, [5, 6])
    assert cache.stats().not_stored == 1
    cache.release(second)
    assert keep(cache, device, list(range(60, 70)))
    assert look_up(cache, [3, 4]).miss is MissReason.EVICTED
    cache.release(first)
    assert keep(cache, device, list(range(70, 80)))
    assert look_up(cache, [1, 2]).miss is MissReason.EVICTED


def test_a_state_larger_than_a_tier_goes_to_the_next(tmp_path: Path) -> None:
    cache, device = make(CacheConfig(host_capacity=100, disk=disk(tmp_path)))
    assert keep(cache, device, PROMPT)
    assert copies(cache, PROMPT) == {"disk"}
    assert restored(cache, device, look_up(cache, PROMPT))


def test_a_state_that_can_not_fit_evicts_nothing() -> None:
    cache, device = make(CacheConfig(host_capacity=STATE))
    assert keep(cache, device, [1, 2], logits=False)
    assert not keep(cache, device, [3, 4])
    assert look_up(cache, [1, 2, 3]).saved == 2


def test_without_a_device_tier_a_hit_on_disk_comes_up_to_the_host(tmp_path: Path) -> None:
    cache, device = make(CacheConfig(host_capacity=STATE + LOGITS, disk=disk(tmp_path)))
    keep(cache, device, [1, 2])
    keep(cache, device, [3, 4])
    assert restored(cache, device, look_up(cache, [1, 2]))
    assert copies(cache, [1, 2]) == {"host", "disk"}
    assert copies(cache, [3, 4]) == {"disk"}


def test_what_a_checkpoint_saves_is_counted_from_the_next_shorter_one() -> None:
    cache, device = make()
    keep(cache, device, PROMPT)
    keep(cache, device, PROMPT[:12])
    match = look_up(cache, PROMPT)
    cache.release(match)
    assert match.checkpoint is not None
    assert match.checkpoint.saves == 8


def test_eviction_keeps_the_shared_beginning_that_everybody_uses() -> None:
    cache, device = make(CacheConfig(host_capacity=4 * (STATE + LOGITS)))
    system = list(range(500, 600))
    keep(cache, device, system)
    for user in range(50):
        match = look_up(cache, [*system, user])
        assert match.saved == 100
        cache.restore(match, 0)
        device.run([user])
        cache.insert(ROOT, [*system, user], 0, kind=CheckpointKind.PROMPT_END, logits=toy_logits(SHAPE, [user]))


def test_states_in_f16_take_half_the_bytes(tmp_path: Path) -> None:
    config = CacheConfig(host_precision="f16", disk=replace(disk(tmp_path), precision="f16"))
    cache, device = make(config)
    keep(cache, device, PROMPT)
    assert used(cache)["host"] == STATE // 2 + LOGITS
    assert restored(cache, device, look_up(cache, PROMPT))
    cache.close()
    again, device = make(config)
    assert restored(again, device, look_up(again, PROMPT))


def test_a_value_beyond_f16_keeps_its_tensor_in_f32() -> None:
    cache, device = make(CacheConfig(host_precision="f16"))
    state = toy_state(SHAPE, PROMPT)
    state["wkv"][0, 0, 0, 0] = 1e6
    device.write_state(0, state)
    cache.insert(ROOT, PROMPT, 0, kind=CheckpointKind.MARK)
    cache.restore(look_up(cache, [*PROMPT, 1]), 1)
    assert same(device.read_state(1), state)
    assert used(cache)["host"] == state["wkv"].nbytes + (STATE - state["wkv"].nbytes) // 2


def test_drop_forgets_a_path_but_not_a_locked_one() -> None:
    cache, device = make(slabs=1)
    keep(cache, device, [1, 2])
    keep(cache, device, [3, 4])
    keep(cache, device, [3, 4, 5], root="tuned")
    match = look_up(cache, [3, 4])
    assert cache.drop_state(ROOT) == 1
    assert look_up(cache, [1, 2]).known == 0
    assert cache.drop_state("tuned") == 1
    assert cache.drop_state("tuned") == 0
    assert cache.drop_state(ROOT) == 0
    cache.release(match)
    assert cache.drop_state(ROOT) == 1
    assert used(cache) == {"device": 0, "host": 0}
    assert device.slabs == {}
    assert cache.stats().device_logits_bytes == 0


def test_a_device_that_fails_leaves_the_cache_whole() -> None:
    class Failing(ToyDevice):
        fails = False

        def start_read(self, source: int) -> PendingState:
            if self.fails:
                raise RuntimeError("device lost")
            return super().start_read(source)

    device = Failing(SHAPE)
    cache = make_cache(SHAPE, "model", device)
    device.fails = True
    with pytest.raises(RuntimeError, match="device lost"):
        keep(cache, device, PROMPT)
    assert used(cache) == {"host": 0}
    device.fails = False
    assert look_up(cache, PROMPT).miss is MissReason.NO_CHECKPOINT
    assert keep(cache, device, PROMPT)
    assert restored(cache, device, look_up(cache, PROMPT))


def test_tokens_saved_add_up() -> None:
    cache, device = make()
    keep(cache, device, PROMPT[:12])
    for prompt in (PROMPT, PROMPT[:12], [99]):
        cache.release(look_up(cache, prompt))
    stats = cache.stats()
    assert (stats.look_ups, stats.hits, stats.exact_hits) == (3, 2, 1)
    assert (stats.tokens_looked_up, stats.tokens_saved) == (20 + 12 + 1, 24)


def test_closing_gives_the_slabs_back() -> None:
    cache, device = make(slabs=2)
    keep(cache, device, PROMPT)
    assert len(device.slabs) == 1
    cache.close()
    assert device.slabs == {}


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
