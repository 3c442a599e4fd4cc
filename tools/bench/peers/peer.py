"""The interface of a measured engine, and the timing.

Needs only Python, since each peer has an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

NUM_THREADS: Final = os.cpu_count() or 1
VOCAB_SIZE: Final = 65536
_WARM_UP: Final = 2


@dataclass(frozen=True, slots=True)
class Task:
    """What a peer has to load: a model file, its setting, and the limits of its steps and prompts."""

    file: Path  # a model in the peer's format
    version: str  # such as "v7"
    setting: str  # where or how it runs, in the peer's words
    num_slots: int  # the most sequences of a step
    max_tokens: int  # the longest prompt


class Peer(Protocol):
    """A loaded engine and model to measure. When a method returns, its results are on the host."""

    @property
    def can_batch(self) -> bool:
        """True if one step may run several sequences."""
        ...

    def decode(self, tokens: Sequence[int]) -> None:
        """Run one step that adds token `tokens[s]` to sequence s, from the sequence's present state."""
        ...

    def prefill(self, tokens: Sequence[int]) -> int:
        """Run a prompt from an empty state, and return the likeliest token after the prompt."""
        ...


def measure_peer(load: Callable[[Task], Peer]) -> None:
    """Measure the peer that `load` returns, as the command line says, and print the figures as a line of JSON.

    Each figure is the tokens per second of the median of repeated steps or prompts, after a warm-up. There is one by
    the clock, and one by the seconds of the process on all cores.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--setting", default="")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    sizes = max(arguments.slots), max(arguments.lengths)
    peer = load(Task(arguments.file, arguments.version, arguments.setting, *sizes))
    figures: dict[str, float] = {}
    choices: dict[str, int] = {}

    def measure(name: str, num_tokens: int, work: Callable[[], object]) -> None:
        for clock, seconds in _seconds(work, arguments.repeats).items():
            figures[f"{name}{clock}"] = num_tokens / seconds

    for length in arguments.lengths:
        prompt = _tokens(length)
        measure(f"prefill, {length} tokens", length, partial(peer.prefill, prompt))
        choices[f"after {length} tokens"] = peer.prefill(prompt)
    for slots in arguments.slots:
        if slots == 1 or peer.can_batch:
            measure(f"decode, {slots} slot{'s' * (slots > 1)}", slots, partial(peer.decode, _tokens(slots)))
    print(json.dumps({"figures": figures, "choices": choices}))


def _tokens(count: int) -> list[int]:
    """Return `count` token ids. The speed does not depend on their values."""
    return [(position * 31 + 1) % VOCAB_SIZE for position in range(count)]


def _seconds(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Return the median seconds that `work` takes, by real and by processor time.

    The keys are the suffixes of the figures' names: "" and ", a processor second".
    """
    clocks = {"": time.perf_counter, ", a processor second": time.process_time}
    for _ in range(_WARM_UP):
        work()
    seconds: list[list[float]] = []
    for _ in range(repeats):
        begun = [clock() for clock in clocks.values()]
        work()
        seconds.append([clock() - start for clock, start in zip(clocks.values(), begun, strict=True)])
    return dict(zip(clocks, map(statistics.median, zip(*seconds, strict=True)), strict=True))
