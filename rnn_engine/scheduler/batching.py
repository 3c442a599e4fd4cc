"""When a step is run, and how many tokens each sequence runs in it.

A step costs little more for many sequences than for one, so a request that arrives just before a step is served far
sooner than one that arrives just after its beginning. Waiting for it delays those that are there already. Every
policy's waits are bounded, so none starves anyone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import ANONYMOUS, Client

LONGEST_WAIT = 1.0  # seconds that may be asked for
DEFAULT_WAIT = 0.02  # seconds that a number of sequences is waited for, unless said otherwise
_WEIGHT = 0.1  # of the latest value in a running mean
_FORMS = "eager, k:NUMBER, t:SECONDS, k-or-t:NUMBER,SECONDS or adaptive"


@dataclass(frozen=True, slots=True)
class Load:
    """What a step would run if it ran now."""

    sequences: int  # at least 1
    capacity: int  # the most that a step can run
    waited: float  # seconds for which it could have been run
    now: float  # seconds


class BatchingPolicy(Protocol):
    """Decides before each step whether to wait for more requests, from every arrival and every step before it."""

    def arrived(self, now: float) -> None:
        """Note that a request has come."""
        ...

    def stepped(self, seconds: float) -> None:
        """Note that a step has taken so long."""
        ...

    def wait_seconds(self, load: Load) -> float:
        """Return for how many more seconds to wait for requests; 0 = run the step. Asked again after every arrival."""
        ...


@dataclass(frozen=True, slots=True)
class Gather:
    """Waits for `sequences`, or for as many as a step can run where these are fewer, and at most `seconds`."""

    sequences: int | None  # None = as many as a step can run
    seconds: float

    def arrived(self, now: float) -> None:
        """Do nothing: the bounds are fixed."""

    def stepped(self, seconds: float) -> None:
        """Do nothing: the bounds are fixed."""

    def wait_seconds(self, load: Load) -> float:
        wanted = load.capacity if self.sequences is None else min(self.sequences, load.capacity)
        return 0.0 if load.sequences >= wanted else max(self.seconds - load.waited, 0.0)


EAGER = Gather(1, 0.0)


class Adaptive:
    """Waits no longer than it expects to gain, which is never more than half of a step.

    If the next request is to come in `interval` seconds and a step takes `step`, waiting costs `interval` for each
    sequence at hand and gains `step - interval` for the one that comes. So it waits where
    `interval * (sequences + 1) < step`, and gives up when as much time has gone by as the gain would pay for.
    """

    def __init__(self) -> None:
        self._interval: float | None = None  # a running mean, as is the next
        self._step: float | None = None
        self._last_arrival: float | None = None

    def arrived(self, now: float) -> None:
        if self._last_arrival is not None:
            self._interval = running_mean(self._interval, now - self._last_arrival)
        self._last_arrival = now

    def stepped(self, seconds: float) -> None:
        self._step = running_mean(self._step, seconds)

    def wait_seconds(self, load: Load) -> float:
        if self._interval is None or self._step is None or self._last_arrival is None:
            return 0.0
        longest = min(self._step / (load.sequences + 1), LONGEST_WAIT)
        # Where nobody has come for longer than usual, the usual interval says too little.
        interval = max(self._interval, load.now - self._last_arrival)
        if load.sequences >= load.capacity or interval >= longest:
            return 0.0
        return max(longest - load.waited, 0.0)


def parse_policy(text: str) -> BatchingPolicy:
    """Return the policy that `text` names. Raises InvalidRequestError."""
    name, _, rest = text.partition(":")
    values = rest.split(",") if rest else []
    match name, len(values):
        case "eager", 0:
            return EAGER
        case "adaptive", 0:
            return Adaptive()
        case "k", 1:
            return Gather(_number(text, values), DEFAULT_WAIT)
        case "t", 1:
            return Gather(None, _seconds(text, values))
        case "k-or-t", 2:
            return Gather(_number(text, values), _seconds(text, values))
    raise InvalidRequestError("batching", text, _FORMS)


def _number(text: str, values: Sequence[str]) -> int:
    if not values[0].isdecimal() or int(values[0]) < 1:
        raise InvalidRequestError("batching", text, f"{_FORMS}, with a NUMBER of at least 1")
    return int(values[0])


def _seconds(text: str, values: Sequence[str]) -> float:
    try:
        seconds = float(values[-1])
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= LONGEST_WAIT:  # also refuses NaN
        raise InvalidRequestError("batching", text, f"{_FORMS}, with SECONDS above 0 and at most {LONGEST_WAIT:g}")
    return seconds


def running_mean(before: float | None, value: float) -> float:
    """Return the mean with a new value taken in; `before` is None where there was none."""
    return value if before is None else before + _WEIGHT * (value - before)


@dataclass(slots=True, eq=False)  # not frozen, which triples what making one costs: there is one a token
class TokenDemand:
    """What one sequence would run next: 1 token at decode, the rest of its prompt before."""

    tokens: int  # at least 1
    rows: int = 1  # at least 1: how many of the last of them may want a logit row


@dataclass(slots=True)
class _Part:
    """Tokens and rows of a step that are still to be had."""

    tokens: int
    rows: int

    def divide(self, share: float, num_prompts: int = 1, num_scored: int = 1) -> _Part:
        """Return what each of so many prompts gets of a share of this."""
        return _Part(int(self.tokens * share) // num_prompts, int(self.rows * share) // max(num_scored, 1))


def allocate_tokens(
    demands: Sequence[TokenDemand], max_tokens: int, max_rows: int, clients: Sequence[Client] = ()
) -> list[int]:
    """Return how many tokens each sequence runs in this step; `demands` are oldest first, at most either bound many.

    Every sequence gets one token, so that decode always advances and nobody starves. What is left is divided by the
    `clients` whose prompts these are, and their weights; without any, all are of one. Half of a client's part goes to
    its prompts in equal parts, the rest to its oldest first, and what it has no use for to the oldest of all.
    """
    granted = [1] * len(demands)
    prompts = [index for index, demand in enumerate(demands) if demand.tokens > 1]
    if not prompts:
        return granted
    owners = [clients[index] if clients else ANONYMOUS for index in prompts]
    num_prompts = Counter(owners)
    num_scored = Counter(owner for index, owner in zip(prompts, owners, strict=True) if demands[index].rows > 1)
    weight = sum(owner.weight for owner in num_prompts)
    left = _Part(max_tokens - len(demands), max_rows - len(demands))
    parts = {owner: left.divide(owner.weight / weight) for owner in num_prompts}
    equal = {owner: part.divide(0.5, num_prompts[owner], num_scored[owner]) for owner, part in parts.items()}
    for limits in (equal, parts, dict.fromkeys(parts, left)):
        for index, owner in zip(prompts, owners, strict=True):
            demand, limit = demands[index], limits[owner]
            rows = _rows(demand, granted[index])
            without_more_rows = demand.tokens - demand.rows + rows - granted[index]
            more = min(
                demand.tokens - granted[index],
                limit.tokens,
                left.tokens,
                without_more_rows + min(limit.rows, left.rows),
            )
            granted[index] += more
            more_rows = _rows(demand, granted[index]) - rows
            for part in (left, parts[owner]):
                part.tokens -= more
                part.rows -= more_rows
    return granted


def _rows(demand: TokenDemand, tokens: int) -> int:
    """Return how many rows the first `tokens` of a demand may want."""
    return max(1, tokens - (demand.tokens - demand.rows))
