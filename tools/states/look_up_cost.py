"""Measure what a look-up costs on a large cache, and beside it a plain trie with one node a token.

    python -m tools.states.look_up_cost --checkpoints 10000 --prompt 8000

The cache is filled with prompts that share a system text or nothing, half and half; states are tiny, for their size
does not matter to the search. Times are processor time, the median and the worst of many.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import pygtrie

from rnn_engine.types import ReadyState, State
from states.cache.cache import Match, StateCache
from states.cache.checkpoint import CheckpointKind
from states.cache.config import CacheConfig
from states.cache.tree import TokenTree
from states.cache.upkeep import make_cache
from states.tokens import pack
from tests.support.models import tiny_shape

VOCAB = 65536
ROOT = "none"
SHAPE = tiny_shape(layers=1, width=4, head_size=4, ffn=4, vocab=8)


class OneSlot:
    """A live state that never changes."""

    def start_read(self, slot: int) -> ReadyState:  # noqa: ARG002
        return ReadyState(SHAPE.initial_state())

    def write_state(self, slot: int, state: State | None) -> None:
        """Do nothing: no sequence runs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--prompt", type=int, default=8_000, help="tokens of a looked-up prompt")
    parser.add_argument("--own", type=int, default=2_000, help="tokens of a path that no other shares")
    parser.add_argument("--look-ups", type=int, default=200)
    options = parser.parse_args()
    chance = random.Random(1)
    _measure_cache(options.checkpoints, options.prompt, options.own, options.look_ups, chance)
    _measure_plain_trie(min(options.checkpoints, 300), options.prompt, options.own, chance)


def _measure_cache(checkpoints: int, prompt: int, own: int, look_ups: int, chance: random.Random) -> None:
    cache = make_cache(SHAPE, "model", OneSlot(), CacheConfig(host_capacity=1 << 40))
    system = _tokens(prompt - own, chance)
    paths = []
    inserts = []
    for number in range(checkpoints):
        path = (system if number % 2 else []) + _tokens(own, chance)
        inserts.append(_milliseconds(lambda path=path: _insert(cache, path)))  # type: ignore[misc]
        if number >= checkpoints - 2 * look_ups:
            paths.append(path)
    deep = [path for path in paths if len(path) == prompt]
    print(f"{checkpoints} checkpoints, {own} tokens of their own each; prompts of {prompt} tokens")
    _report("insert", inserts)
    _report("hit among 10,000 short prompts", _short_times(cache, look_ups, chance))
    _report("exact hit", [_look_up_time(cache, path) for path in deep])
    _report("leaves a path near its end", [_look_up_time(cache, [*path[:-10], *_tokens(10, chance)]) for path in deep])
    _report("leaves the system text", [_look_up_time(cache, system + _tokens(own, chance)) for _ in deep])
    _report("unknown prompt", [_look_up_time(cache, _tokens(prompt, chance)) for _ in deep])
    _report("a checkpoint a token on the way", _dense_times(cache, prompt, look_ups, chance))
    print(f"  a full run of the garbage collector: {_milliseconds(gc.collect):.0f} ms")
    print(f"memory of the tree: {_tree_bytes_a_token(own, chance):.1f} bytes a token")


def _measure_plain_trie(paths: int, prompt: int, own: int, chance: random.Random) -> None:
    shared = _tokens(prompt - own, chance)
    tracemalloc.start()
    trie = pygtrie.Trie()
    for number in range(paths):
        last = shared + _tokens(own, chance)
        trie[last] = number
    node_bytes = tracemalloc.get_traced_memory()[0] / (paths * own)
    tracemalloc.stop()
    leaving = [*last[:-10], *[VOCAB] * 10]
    print(f"pygtrie with one node a token, {paths} paths: {node_bytes:.0f} bytes a token")
    _report("longest_prefix", [_milliseconds(lambda: trie.longest_prefix(last)) for _ in range(20)])
    _report("bisection with has_node", [_milliseconds(lambda: _bisect(trie, leaving)) for _ in range(20)])


def _bisect(trie: pygtrie.Trie, tokens: Sequence[int]) -> int:
    low, high = 0, len(tokens) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if trie.has_node(tokens[:middle]):
            low = middle
        else:
            high = middle
    return low


def _dense_times(cache: StateCache, prompt: int, look_ups: int, chance: random.Random) -> list[float]:
    """Time the worst search back: a known path with many positions, none of which can be resumed from."""
    path = _tokens(prompt, chance)
    for length in range(prompt - 2 * look_ups, prompt):
        _insert(cache, path[:length])
    return [_look_up_time(cache, path[: prompt - number]) for number in range(1, look_ups)]


def _short_times(cache: StateCache, look_ups: int, chance: random.Random) -> list[float]:
    paths = [_tokens(chance.randrange(20, 200), chance) for _ in range(10_000)]
    for path in paths:
        _insert(cache, path)
    return [_look_up_time(cache, [*path, 1, 2, 3]) for path in paths[:look_ups]]


def _tree_bytes_a_token(own: int, chance: random.Random) -> float:
    paths = [pack(_tokens(own, chance)) for _ in range(200)]
    tracemalloc.start()
    tree: TokenTree[int] = TokenTree()
    for number, path in enumerate(paths):
        tree.put(path, number)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / (len(paths) * own)


def _insert(cache: StateCache, path: Sequence[int]) -> None:
    logits = np.zeros(SHAPE.vocab_size, np.float32)
    cache.insert(ROOT, path, 0, kind=CheckpointKind.PROMPT_END, logits=logits)


def _look_up_time(cache: StateCache, prompt: Sequence[int]) -> float:
    found: list[Match] = []
    milliseconds = _milliseconds(lambda: found.append(cache.look_up(ROOT, prompt)))
    cache.release(found[0])
    return milliseconds


def _milliseconds(action: Callable[[], object]) -> float:
    start = time.thread_time()
    action()
    return 1e3 * (time.thread_time() - start)


def _report(what: str, milliseconds: Sequence[float]) -> None:
    median, worst = statistics.median(milliseconds), max(milliseconds)
    print(f"  {what}: {median:.3f} ms median, {worst:.3f} ms worst of {len(milliseconds)}")


def _tokens(count: int, chance: random.Random) -> list[int]:
    return chance.choices(range(VOCAB), k=count)


if __name__ == "__main__":
    main()
