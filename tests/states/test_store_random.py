"""Names, leases and bytes of a store against a plain model of them, under random operations."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rnn_engine.errors import InvalidRequestError, NotFoundError, OverloadedError
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import Retention
from rnn_engine_states.named.quota import DEFAULT_TTL
from tests.support.named_states import Clock, advance, make_states, some_initial

NAMES = st.sampled_from("abcdef")
OWNERS = st.sampled_from(["ann", "bob", "cid", None])
TTLS = st.sampled_from([None, 5.0, 50.0])
VALUES = [some_initial(seed) for seed in range(4)]
SIZE = VALUES[0].num_bytes
CAPACITY = 3 * SIZE


@dataclass
class Owner:
    """A lease in the model."""

    begun: int
    ttl: float
    used: float


class Books:
    """The simple model, which answers every question by a search of everything."""

    def __init__(self) -> None:
        self.now = 0.0
        self.states: dict[str, tuple[str, FrozenState]] = {}  # name -> owner, values
        self.owners: dict[str, Owner] = {}
        self.count = 0

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for owner in [name for name, lease in self.owners.items() if lease.used + lease.ttl <= self.now]:
            self.end(owner)

    def end(self, owner: str) -> None:
        del self.owners[owner]
        self.states = {name: state for name, state in self.states.items() if state[0] != owner}

    def settle(self) -> None:
        """Remove the leases of owners without states."""
        for owner in [name for name in self.owners if all(state[0] != name for state in self.states.values())]:
            del self.owners[owner]

    def use(self, owner: str, ttl: float | None = None) -> None:
        self.count += 1
        lease = self.owners.setdefault(owner, Owner(self.count, DEFAULT_TTL, self.now))
        lease.used, lease.ttl = self.now, ttl or lease.ttl

    def num_bytes(self, states: dict[str, tuple[str, FrozenState]]) -> int:
        return SIZE * len({id(initial) for _, initial in states.values()})

    def make_room(self, wanted: dict[str, tuple[str, FrozenState]], owner: str) -> set[str] | None:
        """Return the owners whose leases must end so that `wanted` fits; None if it can't fit."""
        going: set[str] = set()
        begun = self.owners[owner].begun if owner in self.owners else self.count + 1
        newer = sorted((o for o in self.owners if self.owners[o].begun > begun), key=lambda o: -self.owners[o].begun)
        for victim in [None, *newer]:
            going |= {victim} if victim is not None else set()
            if self.num_bytes({name: state for name, state in wanted.items() if state[0] not in going}) <= CAPACITY:
                return {gone for gone in going if any(state[0] == gone for state in self.states.values())}
        return None


class RegistryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.states = make_states(capacity=CAPACITY, clock=self.clock)
        self.forgotten: list[str] = []  # since the last look
        self.held: set[str] = set()  # digests, at the last look
        self.states.on_forgotten(self.forgotten.append)
        self.books = Books()

    @rule(seconds=st.sampled_from([1.0, 4.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.books.pass_time(seconds)

    @rule(name=NAMES, owner=OWNERS, ttl=TTLS, value=st.integers(0, 3))
    def put(self, name: str, owner: str | None, ttl: float | None, value: int) -> None:
        initial = some_initial(value)
        real, books = owner or name, self.books
        going = books.make_room({**books.states, name: (real, initial)}, real)
        try:
            self.states.put(name, initial, Retention(owner=owner, ttl=ttl), source="test")
        except InvalidRequestError:
            assert name in books.states
        except OverloadedError:
            assert name not in books.states
            assert going is None
        else:
            assert name not in books.states
            assert going is not None
            for gone in going:
                books.end(gone)
            books.use(real, ttl)
            books.states[name] = (real, initial)

    @rule(name=NAMES, value=st.integers(0, 3))
    def advance(self, name: str, value: int) -> None:
        if name in self.books.states:
            owner, _ = self.books.states[name]
            initial = some_initial(value)
            old = self.states.get(name)
            self.books.use(owner)
            going = self.books.make_room({**self.books.states, name: (owner, initial)}, owner)
            try:
                advance(self.states, old, initial)
            except OverloadedError:
                assert going is None
            else:
                assert going is not None
                for gone in going:
                    self.books.end(gone)
                self.books.states[name] = (owner, initial)

    @rule(name=NAMES, new=st.lists(NAMES, min_size=1, max_size=3), owner=OWNERS, ttl=TTLS)
    def fork(self, name: str, new: list[str], owner: str | None, ttl: float | None) -> None:
        books = self.books
        try:
            self.states.fork(name, new, Retention(owner=owner, ttl=ttl))
        except InvalidRequestError:
            assert len(set(new)) < len(new) or any(one in books.states for one in new)
            if len(set(new)) == len(new) and name in books.states:
                books.use(books.states[name][0])
        except NotFoundError:
            assert name not in books.states
        else:
            books.use(books.states[name][0])
            for one in new:
                books.use(owner or one, ttl)
                books.states[one] = (owner or one, books.states[name][1])

    @rule(name=NAMES, new=NAMES, owner=OWNERS)
    def take(self, name: str, new: str, owner: str | None) -> None:
        books = self.books
        if name in books.states:
            books.use(books.states[name][0])
        try:
            self.states.move(name, new, Retention(owner=owner))
        except InvalidRequestError:
            assert name != new in books.states
        except NotFoundError:
            assert name not in books.states
        else:
            books.use(owner or new)
            _, initial = books.states.pop(name)
            books.states[new] = (owner or new, initial)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        try:
            self.states.delete(name)
        except NotFoundError:
            assert name not in self.books.states
        else:
            del self.books.states[name]

    @rule(name=NAMES)
    def get(self, name: str) -> None:
        try:
            entry = self.states.get(name)
        except NotFoundError:
            assert name not in self.books.states
        else:
            assert self.books.states[name] == (entry.owner, entry.frozen)
            self.books.use(self.books.states[name][0])

    @invariant()
    def all_agrees(self) -> None:
        self.books.settle()
        entries = {entry.name: (entry.owner, entry.frozen) for entry in self.states.entries()}
        assert entries == self.books.states
        assert self.states.usage().num_bytes == self.books.num_bytes(self.books.states) <= CAPACITY
        assert len({entry.id for entry in self.states.entries()}) == len(entries)
        held = {initial.digest for _, initial in entries.values()}
        assert self.held - held <= set(self.forgotten) <= self.held
        self.held = held
        self.forgotten.clear()


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=60, stateful_step_count=60)
