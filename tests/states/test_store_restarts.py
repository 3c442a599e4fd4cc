"""The next start finds the persistent states after any changes, even from many threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine_states.named.entry import Retention
from tests.support.named_states import BlockingStates, advance, make_states, some_initial


def change(states: BlockingStates, chance: random.Random) -> None:
    """One random change; it may turn out to be impossible."""
    name, other = chance.choice("abcd"), chance.choice("abcd")
    keeping = Retention(persistent=chance.random() < 0.5)
    with suppress(InvalidRequestError, NotFoundError):
        match chance.choice(["put", "put", "fork", "take", "remove", "replace"]):
            case "put":
                states.put(name, some_initial(chance.randrange(4)), keeping, source="test")
            case "fork":
                states.fork(name, [other], keeping)
            case "take":
                states.move(name, other, keeping)
            case "remove":
                states.delete(name)
            case "replace":
                advance(states, states.get(name), some_initial(chance.randrange(4)))


def check(states: BlockingStates, folder: Path) -> BlockingStates:
    """Restart, check that the persistent states are there and that their folder has nothing else, and return them."""
    again = make_states(folder)
    kept = {(entry.name, entry.id, entry.frozen.digest) for entry in states.entries() if entry.persistent}
    assert {(entry.name, entry.id, entry.frozen.digest) for entry in again.entries()} == kept
    assert len(list(folder.iterdir())) == len(kept)
    return again


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_finds_what_there_was(tmp_path: Path, seed: int) -> None:
    chance, states = random.Random(seed), make_states(tmp_path)
    for _ in range(8):
        for _ in range(8):
            change(states, chance)
        states = check(states, tmp_path)


def test_changes_from_many_threads_leave_on_the_disk_what_is_in_memory(tmp_path: Path) -> None:
    states = make_states(tmp_path)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(25):
            change(states, chance)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    check(states, tmp_path)
