"""The store of named states: versions, and an event loop that never waits for a disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rnn_engine.errors import NotFoundError
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.named.entry import Retention
from rnn_engine_states.named.store import StateStore
from tests.support.named_states import Clock, make_states, some_initial

KEPT = Retention()


async def put(store: StateStore, name: str, seed: int = 0, retention: Retention = KEPT) -> None:
    await store.put(name, some_initial(seed), retention, source="test")


async def test_a_change_by_another_is_found_by_its_version() -> None:
    store: StateStore = make_states().store
    await put(store, "a")
    mine, other = await store.get("a"), await store.get("a")
    assert mine == other
    changed = await store.compare_and_set(other, some_initial(1), source="other")
    assert (changed.id, changed.name) == (mine.id, "a")
    assert changed.version > mine.version
    assert changed != mine
    with pytest.raises(NotFoundError, match="'a' was removed or replaced meanwhile"):
        await store.compare_and_set(mine, some_initial(2), source="mine")
    assert (await store.get("a")).frozen.digest == some_initial(1).digest


async def test_every_change_of_a_name_has_a_version_of_its_own() -> None:
    store: StateStore = make_states().store
    versions = []
    for name in ("b", "c"):
        await put(store, "a")
        versions.append((await store.get("a")).version)
        moved = await store.move("a", name, KEPT)
        versions.append(moved.version)
        await store.delete(name)
        with pytest.raises(NotFoundError):  # although the same id comes back with the same values
            await store.compare_and_set(moved, some_initial(1), source="late")
    assert versions == sorted(set(versions))


async def test_what_is_given_out_says_how_long_it_stays(tmp_path: Path) -> None:
    clock = Clock()
    store: StateStore = make_states(tmp_path, clock=clock).store
    await put(store, "a", 0, Retention(ttl=10))
    await put(store, "kept", 1, Retention(persistent=True))
    clock.now = 4.0
    assert {entry.name: entry.expires_in for entry in (await store.list()).entries} == {"a": 6.0, "kept": None}
    assert (await store.get("a")).expires_in == 10.0


async def test_a_slow_disk_holds_up_no_other_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store: StateStore = make_states(tmp_path).store
    entered, let_go, threads = threading.Event(), threading.Event(), set[int]()
    save = StateFiles.save

    def slow_save(files: StateFiles, *arguments: object) -> None:
        threads.add(threading.get_ident())
        entered.set()
        assert let_go.wait(timeout=60)
        save(files, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StateFiles, "save", slow_save)
    slow = asyncio.create_task(put(store, "kept", 0, Retention(persistent=True)))
    await asyncio.to_thread(entered.wait)
    await put(store, "a", 1)
    assert (await store.get("a")).name == "a"
    assert len((await store.list()).entries) == 2
    assert not slow.done()
    let_go.set()
    await slow
    assert threading.get_ident() not in threads


async def test_those_who_change_a_state_take_turns() -> None:
    store: StateStore = make_states().store
    await put(store, "a")
    key = (await store.get("a")).id
    order = []

    async def change(number: int) -> None:
        async with store.lock(key):
            named = await store.get(str(key))
            order.append(number)
            await asyncio.sleep(0)
            await store.compare_and_set(named, some_initial(number), source="test")

    await asyncio.gather(*(change(number) for number in range(4)))
    assert order == [0, 1, 2, 3]
    assert (await store.get("a")).frozen.digest == some_initial(3).digest
