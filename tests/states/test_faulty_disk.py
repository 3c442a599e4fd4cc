"""A disk that fails at any operation: after a restart, acknowledged states exist, and none is half written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from rnn_engine.errors import InvalidRequestError, NotFoundError, StorageError
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.named.entry import Retention
from tests.support.faulty_disk import Crash, Fault, FaultyDisk
from tests.support.named_states import BlockingStates, advance, make_states, some_initial
from tests.support.toy_states import ToyDevice, keep, look_up, same, toy_shape, toy_state

LEASED = Retention()
PERSISTENT = Retention(persistent=True)

Kept: TypeAlias = dict[str, str]  # name -> digest of a persistent state
Change: TypeAlias = Callable[[BlockingStates], object]

CHANGES: tuple[Change, ...] = (
    lambda states: states.put("a", some_initial(0), PERSISTENT, source="test"),
    lambda states: states.put("b", some_initial(1), PERSISTENT, source="test"),
    lambda states: advance(states, states.get("a"), some_initial(2)),
    lambda states: states.fork("b", ["c", "d"], PERSISTENT),
    lambda states: states.move("c", "e", PERSISTENT),
    lambda states: states.delete("b"),
    lambda states: states.move("d", "d", LEASED),
    lambda states: states.put("l", some_initial(3), LEASED, source="test"),
    lambda states: states.move("l", "p", PERSISTENT),
)


def kept(states: BlockingStates) -> Kept:
    return {entry.name: entry.frozen.digest for entry in states.entries() if entry.persistent}


def is_one_of(found: Kept, before: Kept, after: Kept) -> bool:
    """Return True if each name has the state that it had before a change, or the one after it."""
    names = {*found, *before, *after}
    return all(found.get(name) in (before.get(name), after.get(name)) for name in names)


@contextmanager
def faulty(fault: Fault, at: int | None) -> Iterator[FaultyDisk]:
    with pytest.MonkeyPatch.context() as patch:
        yield FaultyDisk(patch, fault, at)


def count_operations(folder: Path) -> tuple[int, list[Kept]]:
    """How many operations all changes take, and what is kept after each."""
    states, after = make_states(folder), [Kept()]
    with faulty(Fault.ERROR, None) as disk:
        for change in CHANGES:
            change(states)
            after.append(kept(states))
    return disk.operations, after


def change_until(states: BlockingStates, error: type[BaseException]) -> int:
    """Make the changes until one raises `error`; return how many were made before."""
    for number, change in enumerate(CHANGES):
        try:
            change(states)
        except error:
            return number
    raise AssertionError(f"no change raised {error.__name__}")


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.POWER])
def test_named_states_outlast_a_crash_at_any_operation(tmp_path: Path, fault: Fault) -> None:
    operations, after = count_operations(tmp_path / "counted")
    assert operations > 30
    for at in range(operations):
        folder = tmp_path / f"{fault.name} {at}"
        states = make_states(folder)
        with faulty(fault, at):
            done = change_until(states, Crash)
        again = make_states(folder)
        assert is_one_of(kept(again), after[done], after[done + 1]), at
        assert len(list(folder.iterdir())) == len(again.entries())


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.FULL])
def test_a_change_that_can_not_be_written_is_undone_in_memory_and_on_the_disk(tmp_path: Path, fault: Fault) -> None:
    operations, _ = count_operations(tmp_path / "counted")
    for at in range(operations):
        folder = tmp_path / f"{fault.name} {at}"
        states, refused = make_states(folder), 0
        with faulty(fault, at):
            for change in CHANGES:
                before = kept(states)
                try:
                    change(states)
                except StorageError:
                    refused += 1
                    assert kept(states) == before
                except (NotFoundError, InvalidRequestError):
                    pass  # it follows from a change that was refused
        assert kept(make_states(folder)) == kept(states), at
        assert states.usage().failed_writes == refused


def test_in_a_folder_that_turns_read_only_what_was_acknowledged_stays(tmp_path: Path) -> None:
    operations, after = count_operations(tmp_path / "counted")
    for at in range(operations):
        folder = tmp_path / str(at)
        states = make_states(folder)
        with faulty(Fault.READ_ONLY, at):
            done = change_until(states, StorageError)
        assert kept(states) == after[done]
        assert is_one_of(kept(make_states(folder)), after[done], after[done + 1])


SHAPE = toy_shape()
PROMPTS = [[*range(start, start + 10)] for start in range(10, 60, 10)]


def make(folder: Path) -> tuple[StateCache, ToyDevice]:
    device = ToyDevice(SHAPE)
    config = CacheConfig(host_capacity=0, disk=DiskConfig(folder, background_bytes=0))
    return make_cache(SHAPE, "model", device, config), device


def use(cache: StateCache, device: ToyDevice) -> None:
    for prompt in PROMPTS:
        keep(cache, device, prompt)
    cache.drop_state("another")
    keep(cache, device, PROMPTS[0], logits=False)


def found(cache: StateCache, device: ToyDevice) -> list[bool]:
    """Return for each prompt True if its state is kept. The state must be right."""
    results = []
    for prompt in PROMPTS:
        match = look_up(cache, prompt)
        results.append(match.saved == len(prompt))
        if match.saved > 0:
            cache.restore(match, 1)
            assert same(device.read_state(1), toy_state(SHAPE, prompt[: match.saved]))
    return results


@pytest.mark.parametrize("fault", Fault)
def test_a_cache_loses_what_could_not_be_written_and_nothing_else(tmp_path: Path, fault: Fault) -> None:
    cache, device = make(tmp_path / "counted")
    with faulty(Fault.ERROR, None) as disk:
        use(cache, device)
    assert all(found(cache, device))
    assert disk.operations > 20
    for at in range(disk.operations):
        folder = tmp_path / f"{fault.name} {at}"
        cache, device = make(folder)
        crashed = fault in (Fault.KILL, Fault.POWER)
        with faulty(fault, at) as disk_then:
            if crashed:
                with pytest.raises(Crash):
                    use(cache, device)
            else:
                use(cache, device)
                assert (cache.stats().failed_writes > 0) == (disk_then.failures > 0)
                kept_now = found(cache, device)
        again, device = make(folder)
        kept_then = found(again, device)
        assert crashed or kept_then == kept_now or fault is Fault.READ_ONLY
        assert not list(folder.glob("*.partial"))
