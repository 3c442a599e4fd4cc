"""Requests that share a prefix with earlier ones: each case warms an engine up and asks the request to measure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from rnn_engine.engine import Engine
from rnn_engine.interface import EngineInfo
from states.cache.config import CacheConfig, DiskConfig
from tools.bench.ask import Answer, ask

Draw: TypeAlias = Callable[[int], list[int]]
"""So many new tokens."""

_LONGER = 50  # tokens after the prefix
_TURN = 100
_EVICTIONS = 50  # short prompts that are tried


@dataclass(frozen=True, slots=True)
class Warm:
    """A measured request of which an earlier one shared a prefix."""

    case: str
    prompt: Sequence[int]
    tier: str  # where the state was
    answer: Answer


async def kept_cases(engine: Engine, prefix: Sequence[int], draw: Draw) -> AsyncIterator[Warm]:
    """Ask prompts that follow others at once. The engine has not seen `prefix` before."""
    first = await ask(engine, prefix)
    yield await _measure("exact repeat", engine, prefix)
    yield await _measure("longer prompt", engine, [*prefix, *draw(_LONGER)])
    yield await _measure("next turn of a chat", engine, [*prefix, *first.ids, *draw(_LONGER)])
    inside = draw(len(prefix))
    for _ in range(2):  # the second one leaves the first one's path inside a turn, where a state is kept then
        await ask(engine, [*inside, *draw(_TURN)], max_tokens=1)
    yield await _measure("branch inside a turn, second visit", engine, [*inside, *draw(_TURN)])


def small_tiers(info: EngineInfo, folder: Path) -> CacheConfig:
    """Return room for one state on the device and one on the host, so that states are evicted down to files."""
    state = info.shape.state_bytes
    room = 2 * state  # a slab is somewhat larger than a state, and logits come with a state on the host
    host = room if 4 * info.shape.vocab_size <= state else state + 4 * info.shape.vocab_size
    return CacheConfig(device_capacity=room, host_capacity=host, disk=DiskConfig(folder))


async def evicted_cases(engine: Engine, prefix: Sequence[int], draw: Draw) -> AsyncIterator[Warm]:
    """Ask after evictions. `engine` has the tiers of `small_tiers`, and has not seen `prefix` before."""
    await ask(engine, prefix)
    for tier, case in (("host", "after eviction to host"), ("disk", "after eviction to disk")):
        await _evict_to(engine, tier, len(prefix), draw)
        yield replace(await _measure(case, engine, prefix), tier=tier)


async def restarted_case(engine: Engine, prefix: Sequence[int]) -> Warm:
    """Ask an `engine` that has the files of another one, which has run `prefix`."""
    return await _measure("after a restart", engine, prefix)


async def _measure(case: str, engine: Engine, prompt: Sequence[int]) -> Warm:
    before = _hits(engine)
    answer = await ask(engine, prompt)
    after = _hits(engine)
    hit = [tier for tier in after if after[tier] > before[tier]]
    return Warm(case, prompt, " ".join(hit) or "none", answer)


def _hits(engine: Engine) -> dict[str, int]:
    stats = engine.cache_stats()
    assert stats is not None, "the engine keeps nothing"
    return {tier.tier: tier.hits for tier in stats.tiers}


async def _evict_to(engine: Engine, tier: str, length: int, draw: Draw) -> None:
    """Run short prompts until the one state after `length` tokens is in `tier` alone."""
    for _ in range(_EVICTIONS):
        (sizes,) = [node.sizes for node in await engine.cache_nodes(1000) if node.length == length]
        if set(sizes) == {tier}:
            return
        await ask(engine, draw(8), max_tokens=2)
    raise RuntimeError(f"{_EVICTIONS} prompts brought the state after {length} tokens to {set(sizes)}, not to {tier}")
