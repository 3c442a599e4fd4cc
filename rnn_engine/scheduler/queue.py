"""The queue of requests that wait for slots, and the decision how many tokens of each sequence a step runs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Protocol

from rnn_engine.requests import ANONYMOUS, Client, GenerateRequest
from rnn_engine.scheduler.checkpoints import PromptPrefix, Wait
from rnn_engine_states.cache.tiers.fetches import Fetch
from rnn_engine_states.cache.tiers.shared import Inquiry

_WEIGHT = 0.1  # of the latest value in a running mean


def running_mean(before: float | None, value: float) -> float:
    """Return the running mean `before` updated with `value`. If `before` is None, `value` is the first value."""
    return value if before is None else before + _WEIGHT * (value - before)


@dataclass(slots=True, eq=False)  # not frozen, which triples what making one costs: there is one a token
class TokenDemand:
    """How many tokens a sequence would run next: 1 at decode, else the rest of its prompt; and the rows for them."""

    tokens: int  # at least 1
    rows: int = 1  # at least 1: how many of the last of them may want a logit row


DECODE = TokenDemand(1)  # the token that was drawn last; the next one is drawn from its row
TAKE_IN = TokenDemand(1)  # the token that was drawn last; only the state after it is wanted


class DraftDemand(TokenDemand):
    """The numbers of tokens and logit rows of a run with a draft, which has drawn tokens first, then drafted ones."""

    __slots__ = ()


@dataclass(slots=True)
class _Share:
    """A share of a step's tokens and logit rows, from which sequences are given tokens."""

    tokens: int
    rows: int

    def divide(self, share: float, num_prompts: int = 1, num_scored: int = 1) -> _Share:
        """Return a prompt's share of the fraction `share` of this, with rows only for `num_scored` prompts."""
        return _Share(int(self.tokens * share) // num_prompts, int(self.rows * share) // max(num_scored, 1))


def allocate_tokens(
    demands: Sequence[TokenDemand], max_tokens: int, max_rows: int, clients: Sequence[Client] = ()
) -> list[int]:
    """Divide a step's budget of tokens and logit rows among its sequences; return how many tokens each sequence runs.

    `demands` are oldest first, and no more than `max_tokens` or `max_rows`. Every sequence gets one token, so that
    decode always advances and no request starves. The rest is divided among the `clients` that have prompts, by their
    weights; without `clients`, all sequences belong to one. Half of a client's part goes to its prompts in equal parts,
    and the rest to its prompts from the oldest on. What a client can't use goes to the oldest prompts of all.
    """
    granted = [1] * len(demands)
    prompts = [index for index, demand in enumerate(demands) if demand.tokens > 1]
    if not prompts:
        return granted
    owners = [clients[index] if clients else ANONYMOUS for index in prompts]
    num_prompts = Counter(owners)
    num_scored = Counter(owner for index, owner in zip(prompts, owners, strict=True) if demands[index].rows > 1)
    weight = sum(owner.weight for owner in num_prompts)
    left = _Share(max_tokens - len(demands), max_rows - len(demands))
    parts = {owner: left.divide(owner.weight / weight) for owner in num_prompts}
    equal = {owner: part.divide(0.5, num_prompts[owner], num_scored[owner]) for owner, part in parts.items()}
    for limits in (equal, parts, dict.fromkeys(parts, left)):
        for index, owner in zip(prompts, owners, strict=True):
            demand, limit = demands[index], limits[owner]
            rows = count_rows(demand, granted[index])
            without_more_rows = demand.tokens - demand.rows + rows - granted[index]
            more = min(
                demand.tokens - granted[index],
                limit.tokens,
                left.tokens,
                without_more_rows + min(limit.rows, left.rows),
            )
            granted[index] += more
            more_rows = count_rows(demand, granted[index]) - rows
            for part in (left, parts[owner]):
                part.tokens -= more
                part.rows -= more_rows
    return granted


def count_rows(demand: TokenDemand, tokens: int) -> int:
    """Return how many rows the first `tokens` tokens of a next run may need, all of which `demand` describes."""
    return max(1, tokens - (demand.tokens - demand.rows))


OLDEST_EVERY = 8


class Queued(Protocol):
    """The protocol of a request that waits for slots, either its first ones (`Waiting`) or new ones (`Suspended`)."""

    @property
    def key(self) -> int: ...

    @property
    def request(self) -> GenerateRequest: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def ready(self) -> bool:
        """True if the request would start or resume now if it had its slots."""

    def release(self) -> None:
        """Release the states that the request holds or waits for, because it leaves the queue."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits for its first slot, perhaps also for a prompt or a read; one for each state of a mix."""

    key: int
    request: GenerateRequest
    prefix: PromptPrefix
    arrived: float = 0.0  # by the scheduler's clock
    context: Context = field(default_factory=copy_context)  # the caller's, which lines of the log show
    wait: Wait | None = None  # for a running request to reach the end of the common prefix
    asked: bool = False  # whether `inquiry` was begun, if there are other servers
    inquiry: Inquiry | None = None  # asks other servers whether they have kept more of the prompt
    fetch: Fetch | None = None  # reads the state that it goes on from
    others: tuple[Waiting, ...] = ()  # of a mix: the parts for its further states, which start together with this one

    @property
    def members(self) -> tuple[Waiting, ...]:
        """The parts of the request that each need a slot: this object, and one more for each further state of a mix."""
        return (self, *self.others)

    @property
    def num_slots(self) -> int:
        return len(self.members)

    @property
    def ready(self) -> bool:
        if self.wait is not None and not self.wait.ready:
            return False
        if any(read is not None and not read.done for read in (self.inquiry, self.fetch)):
            return False
        return not self.others or all(other.ready for other in self.others)

    def set_fetch(self, fetch: Fetch | None) -> None:
        """Let the request wait for `fetch`, the read of a stored state, or for none; release the read before it."""
        before, self.fetch = self.fetch, fetch
        if before is not None:
            before.release()

    def release(self) -> None:
        """Stop waiting for states to be read, in all parts of the request."""
        for member in self.members:
            member.set_fetch(None)
            if member.inquiry is not None:
                member.inquiry.cancel()


class _Line:
    """The queued requests of one client; suspended ones, which have begun, come first."""

    def __init__(self) -> None:
        self.turn = 0  # clients that are otherwise equal come in ascending order of it
        self._begun: dict[int, Queued] = {}  # oldest first, like the next
        self._waiting: dict[int, Queued] = {}
        self._num_taken = 0  # of `_waiting`

    def __len__(self) -> int:
        return len(self._begun) + len(self._waiting)

    def __iter__(self) -> Iterator[Queued]:
        return itertools.chain(self._begun.values(), self._waiting.values())

    def add(self, queued: Queued, *, has_begun: bool) -> None:
        (self._begun if has_begun else self._waiting)[queued.key] = queued

    def remove(self, key: int) -> Queued:
        queued = self._begun.pop(key, None)
        return self._waiting.pop(key) if queued is None else queued

    def take(self, key: int) -> None:
        """Remove the request `key` from the client's line, because it was given its slots."""
        if self._begun.pop(key, None) is None:
            del self._waiting[key]
            self._num_taken += 1

    def find(self, key: int) -> Queued:
        return self._begun.get(key) or self._waiting[key]

    def ready(self) -> Iterator[Queued]:
        """Yield the client's requests that can start, in the order in which they should get slots."""
        yield from [queued for queued in self._begun.values() if queued.ready]
        by_arrival = [queued for queued in self._waiting.values() if queued.ready]
        by_priority = sorted(by_arrival, key=lambda queued: -queued.request.priority)
        orders = iter(by_arrival), iter(by_priority)
        offered: set[int] = set()
        while len(offered) < len(by_arrival):
            order = orders[self._num_taken % OLDEST_EVERY < OLDEST_EVERY - 1]
            queued = next(one for one in order if one.key not in offered)
            offered.add(queued.key)
            if queued.ready:
                yield queued


class Queue:
    """The requests that wait for slots, of all clients, in the order in which they get slots.

    Clients in the background come after all others. Of each kind, the client that holds the fewest slots for its weight
    comes first; of equal clients, the one whose turn it is. Of a client's requests, those that have begun and were
    suspended come first, then those of the greatest priority, then the earliest. One of every 8 slots that a client
    gets goes to its earliest request in any case. So for each request that arrived before it, a request sees at most 8
    others of its client start, and 7 besides, even if requests of a greater priority keep coming.
    """

    def __init__(self) -> None:
        self._lines: dict[Client, _Line] = {}  # none that is empty
        self._clients: dict[int, Client] = {}  # by request, oldest first
        self._turns = itertools.count()

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Queued]:
        return itertools.chain.from_iterable(self._lines.values())

    @property
    def keys(self) -> list[int]:
        return list(self._clients)

    @property
    def clients(self) -> list[Client]:
        return list(self._lines)

    def add(self, queued: Queued, *, has_begun: bool = False) -> None:
        """Add a request to its client's queued requests, at the end.

        If `has_begun`, it comes before those of the client's requests that have not begun, and the client's turn is
        over.
        """
        client = self._clients[queued.key] = queued.request.client
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = _Line()
            line.turn = next(self._turns)
        line.add(queued, has_begun=has_begun)
        if has_begun:
            line.turn = next(self._turns)

    def find(self, key: int) -> Queued | None:
        client = self._clients.get(key)
        return None if client is None else self._lines[client].find(key)

    def discard(self, key: int) -> None:
        """Remove the request `key` from the queue and release what it waits for. Does nothing if it is not queued."""
        client = self._clients.pop(key, None)
        if client is not None:
            self._lines[client].remove(key).release()
            self._drop_empty(client)

    def take(self, queued: Queued) -> None:
        """Remove the request `queued` from the queue, because it was given its slots."""
        client = self._clients.pop(queued.key)
        line = self._lines[client]
        line.take(queued.key)
        line.turn = next(self._turns)
        self._drop_empty(client)

    def ready(self, held: Mapping[Client, int] | None = None) -> Iterator[Queued]:
        """Yield the requests that can start, each once, in the order in which they should get slots.

        The caller may take requests, or make them wait, before it asks for the next. `held` are the slots that each
        client holds; it is read before each request. None: no client holds any.
        """
        held = Counter() if held is None else held
        orders = [(client, line, line.ready()) for client, line in self._lines.items()]
        while orders:
            place = 0
            if len(orders) > 1:
                ranks = [(client.rank(held.get(client, 0)), line.turn) for client, line, _ in orders]
                place = ranks.index(min(ranks))
            queued = next(orders[place][2], None)
            if queued is None:
                del orders[place]
            else:
                yield queued

    def _drop_empty(self, client: Client) -> None:
        if not self._lines[client]:
            del self._lines[client]
