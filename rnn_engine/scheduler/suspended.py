"""Requests that give up their slots before their end, so that those of other clients get their share, and go on later.

A state has one fixed size, so it is read from the device and written to it again, into any slot, and nothing is run
twice. What the sequence knows of its text it keeps. It goes on exactly as if it had never been suspended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rnn_engine.requests import Client, GenerateRequest
from rnn_engine.scheduler.queue import Queue
from rnn_engine.scheduler.sequence import LiveSequence
from rnn_engine.scheduler.slots import Slots
from rnn_engine.types import PendingState

LEAST_TOKENS = 64  # that a request of a client of weight 1 runs in its slots until it may be suspended


@dataclass(slots=True, eq=False)
class Suspended:
    """A request that has begun and waits to go on. See `Queued`."""

    live: LiveSequence
    states: Sequence[PendingState]  # of its members
    paused: bool  # its reader is far behind

    @property
    def key(self) -> int:
        return self.live.key

    @property
    def request(self) -> GenerateRequest:
        return self.live.request

    @property
    def num_slots(self) -> int:
        return len(self.live.members)

    @property
    def ready(self) -> bool:
        return not self.paused

    @property
    def has_states(self) -> bool:
        """Whether its states are on the host, so that it does not matter what becomes of the device."""
        return all(state.done() for state in self.states)

    def release(self) -> None:
        """Let go of its states."""
        self.states = ()


def find_victims(queue: Queue, slots: Slots, least_tokens: int) -> list[LiveSequence]:
    """Return the live requests that are to be suspended, so that the next ones of `queue` can start.

    A request is suspended for one of another client that holds no more slots for its weight than its own client does
    after that. It has run `least_tokens` times its client's weight since it got its slots, or its reader is behind. The
    client that holds most loses first, and of its requests those that are paused, then the one that has run longest.
    """
    if len(queue) == 0:
        return []
    held, num_free = slots.held.copy(), slots.num_free
    if not _any_has_less(queue.clients, held):
        return []
    candidates = [
        live
        for live in slots.live.values()
        if slots.is_paused(live.key) or slots.tokens_since(live) >= least_tokens * live.request.client.weight
    ]
    victims: list[LiveSequence] = []
    for queued in queue.ready(held):
        client, chosen = queued.request.client, list[LiveSequence]()
        while num_free < queued.num_slots:
            having_more = [live for live in candidates if _has_more(live, client, held)]
            if not having_more:
                return victims
            victim = max(having_more, key=lambda live: _claim(live, held, slots))
            candidates.remove(victim)
            chosen.append(victim)
            held[victim.request.client] -= len(victim.members)
            num_free += len(victim.members)
        victims += chosen
        num_free -= queued.num_slots
        held[client] += queued.num_slots
    return victims


def _any_has_less(clients: Sequence[Client], held: Counter[Client]) -> bool:
    """Whether one of `clients` may have less than another one holds after it has lost a slot."""
    if not clients or not held or (len(held) == 1 and held.keys() >= set(clients)):
        return False
    least = min(held[client] / client.weight for client in clients)
    return least <= max((count - 1) / client.weight for client, count in held.items())


def _has_more(live: LiveSequence, client: Client, held: Counter[Client]) -> bool:
    """Whether the client of `live` holds no less than `client` for its weight when `live` is suspended."""
    owner = live.request.client
    left = held[owner] - len(live.members)
    return owner != client and left / owner.weight >= held[client] / client.weight


def _claim(live: LiveSequence, held: Counter[Client], slots: Slots) -> tuple[float, bool, int]:
    owner = live.request.client
    return held[owner] / owner.weight, slots.is_paused(live.key), slots.tokens_since(live)
