"""Random changes of named states by several keys: none changes or sees another key's states, or learns of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from rnn_engine.errors import ForbiddenError, InvalidRequestError, NotFoundError
from rnn_engine_server.auth.engine import KeyViewer
from rnn_engine_server.auth.keys import Principal, Scope
from rnn_engine_states.named.entry import NamedState, Retention
from rnn_engine_states.named.store import StateStore
from tests.support.named_states import BlockingStates, make_states, some_initial

PRINCIPALS = {
    "ann": Principal("ann", Scope.MANAGE),
    "ann.b": Principal("ann.b", Scope.MANAGE),
    "eve": Principal("eve", Scope.USE),
    "op": Principal("op", Scope.ADMIN),
}
OWN_NAMES = {"ann": "Q-ANN", "ann.b": "Q-BEN", "eve": "Q-EVE", "op": "Q-OPS"}
VALUES = [some_initial(seed) for seed in range(3)]
OPERATIONS = ("put", "put", "fork", "move", "delete", "change", "get")


async def change(states: StateStore, chance: random.Random, name: str, new: str) -> list[NamedState]:
    """Do one random operation, and return the states that it shows."""
    keeping = Retention(persistent=chance.random() < 0.5, shared=chance.random() < 0.2)
    match chance.choice(OPERATIONS):
        case "put":
            return [await states.put(new, chance.choice(VALUES), keeping, source="test")]
        case "fork":
            return list(await states.fork(name, [new], keeping))
        case "move":
            return [await states.move(name, new, keeping)]
        case "delete":
            return [await states.delete(name)]
        case "change":
            old = await states.get(name)
            return [old, await states.compare_and_set(old, chance.choice(VALUES), source="test")]
    return [await states.get(name)]


def names_to_try(states: BlockingStates) -> list[str]:
    """Return the names and ids of all keys' states, the names as clients write them and as the store has them."""
    entries = states.entries()
    return ["a", "b", *OWN_NAMES.values(), *(entry.name for entry in entries), *(str(entry.id) for entry in entries)]


class Before:
    """The states before an operation of a key."""

    def __init__(self, states: BlockingStates, key: str) -> None:
        self.states = states
        self.entries = states.entries()
        self.foreign = [entry for entry in self.entries if entry.namespace not in ("", key)]
        self.shared = [entry for entry in self.entries if not entry.namespace]
        known = {entry.plain_name for entry in self.entries if entry not in self.foreign}
        self.secrets = set(OWN_NAMES.values()) - {OWN_NAMES[key]} - known
        self.secrets |= {str(entry.id) for entry in self.foreign}

    def check(self, shown: Sequence[NamedState], told: str) -> None:
        """Check the states after the operation, and that its results `shown` and `told` show nothing of other keys."""
        now = self.states.entries()
        assert set(self.foreign + self.shared) <= set(now)
        assert {entry for entry in now if not entry.namespace} == set(self.shared)
        assert not {entry.id for entry in shown} & {entry.id for entry in self.foreign}
        assert not [secret for secret in self.secrets if secret in told]


@pytest.mark.parametrize("seed", range(3))
async def test_nobody_meets_what_is_anothers(tmp_path: Path, seed: int) -> None:
    chance, done, refused = random.Random(seed), 0, 0
    for _ in range(4):
        states = make_states(tmp_path)  # a start, which finds the persistent states
        clients = {key: states.store.seen_by(KeyViewer(who)) for key, who in PRINCIPALS.items()}
        for _ in range(150):
            key = chance.choice(list(PRINCIPALS))
            name, new = chance.choice(names_to_try(states)), chance.choice(["a", "b", OWN_NAMES[key]])
            before, seen, told = Before(states, key), [], ""
            try:
                seen = await change(clients[key], chance, name, new)
                done += 1
            except (ForbiddenError, InvalidRequestError, NotFoundError) as error:
                told = str(error).replace(name, "NAME")
                assert states.entries() == before.entries
                refused += 1
            if PRINCIPALS[key].scope is not Scope.ADMIN:
                before.check([*seen, *(await clients[key].list()).entries], told)
    assert (done > 100, refused > 100) == (True, True)
