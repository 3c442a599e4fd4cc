"""The folder of persistent states: reading after a restart, other files in it, and a disk that fails."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.errors import StorageError
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import freeze_state
from rnn_engine_states.named.entry import Retention
from rnn_engine_states.named.store import LocalTable, SavedStates
from tests.support.named_states import (
    FINGERPRINT,
    KEPT,
    PERSISTENT,
    SHAPE,
    STATE_BYTES,
    BlockingStates,
    Clock,
    advance,
    make_states,
    names,
    put,
    some_initial,
    some_state,
)


def test_persistent_states_are_there_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "states"
    states = make_states(folder)
    kept = states.put(
        "kept",
        freeze_state(
            some_state(), SHAPE, "test", logits=np.arange(10, dtype=np.float32), num_tokens=3, last_tokens=(1, 2, 3)
        ),
        PERSISTENT,
        source="test",
    )
    put(states, "leased", seed=1)
    forked = put(states, "removed", 2, PERSISTENT)
    states.fork("removed", ["fork"], PERSISTENT)
    states.delete("removed")
    states.move("leased", "taken", PERSISTENT)
    states.move("fork", "given up", KEPT)
    advanced = advance(states, put(states, "advanced", 3, PERSISTENT), some_initial(4))
    again = make_states(folder)
    assert sorted(names(again)) == ["advanced", "kept", "taken"]
    loaded = again.get("kept")
    assert (loaded.id, loaded.form, loaded.frozen.digest) == (kept.id, "full", kept.frozen.digest)
    assert (loaded.frozen.num_tokens, loaded.frozen.last_tokens) == (3, (1, 2, 3))
    assert loaded.frozen.logits is not None
    assert loaded.frozen.logits.tolist() == list(range(10))
    assert again.get("advanced").frozen.digest == advanced.frozen.digest
    assert again.get("taken").frozen.digest == some_initial(1).digest
    assert forked.frozen.digest not in {entry.frozen.digest for entry in again.entries()}


def test_files_that_do_not_serve_are_told_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    states = make_states(tmp_path)
    for number, name in enumerate(("good", "damaged", "cut", "taken")):
        put(states, name, number, PERSISTENT)
    paths = {entry.name: tmp_path / f"{entry.id}.state" for entry in states.entries()}
    content = bytearray(paths["damaged"].read_bytes())
    content[-1] ^= 1
    paths["damaged"].write_bytes(content)
    paths["cut"].write_bytes(paths["cut"].read_bytes()[:-100])
    partial = tmp_path / f"{uuid.uuid4()}.state.{uuid.uuid4().hex}.partial"
    for other in (partial, tmp_path / "notes.txt", tmp_path / "mine.state"):
        other.write_text("mine")
    fresh = make_states()
    fresh.add(LoadedState("tuned", some_state(9)), "taken", "test")
    with caplog.at_level(logging.WARNING):
        again = make_states(tmp_path, capacity=2 * STATE_BYTES)
    assert names(again) == ["good", "taken"]
    assert caplog.text.count("a persistent state is skipped") == 2
    with caplog.at_level(logging.WARNING):
        assert names(make_states(tmp_path, capacity=STATE_BYTES)) == ["good"]
    assert f"{paths['taken'].name}: states: no room for {STATE_BYTES} more bytes" in caplog.text
    assert names(make_states(tmp_path, model="another")) == []
    assert "the state belongs to model model; the loaded model is another" in caplog.text
    assert not partial.exists()
    assert len(list(tmp_path.iterdir())) == 6


def test_what_cannot_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = make_states(tmp_path)
    kept, leased = put(states, "kept", 0, PERSISTENT), put(states, "leased", 1)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", no_space)
        for change in (
            lambda: put(states, "new", 2, PERSISTENT),
            lambda: states.fork("kept", ["x", "y"], PERSISTENT),
            lambda: states.move("leased", "mine", PERSISTENT),
            lambda: advance(states, kept, some_initial(3)),
        ):
            with pytest.raises(StorageError, match="can't be written to the folder of states: No space left on device"):
                change()
    assert {entry.name: entry.frozen for entry in states.entries()} == {"kept": kept.frozen, "leased": leased.frozen}
    assert names(make_states(tmp_path)) == ["kept"]
    assert make_states(tmp_path).get("kept").frozen.digest == kept.frozen.digest


def test_a_default_whose_change_cannot_be_written_stays_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = make_states(tmp_path)
    put(states, "kept", 0, PERSISTENT)
    states.set_default("kept")

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    changes: list[Callable[[], object]] = [
        lambda: states.delete("kept"),
        lambda: states.move("kept", "moved", PERSISTENT),
        lambda: states.move("kept", "leased", KEPT),
    ]
    with monkeypatch.context() as patched:
        patched.setattr("os.unlink", read_only)
        patched.setattr("os.fsync", read_only)
        for change in changes:
            with pytest.raises(StorageError, match="Read-only file system"):
                change()
            assert states.default is not None
            assert (states.default.name, names(states)) == ("kept", ["kept"])


def test_what_cannot_be_deleted_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = make_states(tmp_path)
    kept = put(states, "kept", 0, PERSISTENT)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr("os.unlink", read_only)
        with pytest.raises(StorageError, match="can't be deleted from the folder of states: Read-only file system"):
            states.delete("kept")
    assert states.get("kept") == kept
    assert states.delete("kept") == kept
    assert names(states) == names(make_states(tmp_path)) == []


def test_a_cancelled_change_is_written_too(tmp_path: Path) -> None:
    states = make_states(tmp_path)
    held = threading.Event()

    async def cancel() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        holding = loop.run_in_executor(None, held.wait)
        putting = asyncio.create_task(states.store.put("kept", some_initial(), PERSISTENT, source="test"))
        while names(states) != ["kept"]:
            await asyncio.sleep(0)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        held.set()
        await holding

    asyncio.run(cancel())
    assert names(states) == names(make_states(tmp_path)) == ["kept"]


def test_the_file_of_a_state_that_was_skipped_is_kept(tmp_path: Path) -> None:
    ours = put(make_states(tmp_path), "talk", 1, PERSISTENT)
    others = make_states(tmp_path, model="another")
    theirs = [
        put(others, "talk", 1, PERSISTENT),
        others.put("uploaded", some_initial(2), KEPT, source="upload", key=ours.id),
    ]
    others.move("uploaded", "mine", PERSISTENT)
    assert ours.id not in {entry.id for entry in theirs}
    assert make_states(tmp_path).get("talk") == replace(ours, version=1)
    assert names(make_states(tmp_path, model="another")) == ["talk", "mine"]


def test_a_saved_state_with_the_id_of_an_operators_state_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = put(make_states(tmp_path), "a", 1, PERSISTENT)
    files = StateFiles(SHAPE, FINGERPRINT)
    table = LocalTable(files, saved=SavedStates(files, tmp_path))
    table.add(LoadedState("prefab", some_state(2), id=saved.id), "b", "a.prefab")
    table.load_saved()
    states = BlockingStates(table)
    assert (names(states), states.get(str(saved.id)).name) == (["b"], "b")
    assert f"{saved.id}.state: two states have the id {saved.id}" in caplog.text


def test_a_state_whose_promotion_fails_keeps_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    states = make_states(tmp_path, clock=clock)
    put(states, "leased", 1, Retention(ttl=10))
    put(states, "later", 2, Retention(ttl=30))

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    clock.now = 5
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", no_space)
        with pytest.raises(StorageError):
            states.move("leased", "mine", PERSISTENT)
    assert states.seconds_left(states.get("leased")) == 10
    clock.now = 14
    assert names(states) == ["later", "leased"]
    clock.now = 30
    assert names(states) == []
