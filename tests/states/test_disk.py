"""The disk tier: the states that survive a restart, and the effects of a broken disk."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import uuid
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.checkpoint import CheckpointKind, MissReason
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.files.full import SavedState, modified, read_full_state
from rnn_engine_states.frozen import Payload
from tests.support.named_states import save_full_state
from tests.support.toy_states import ROOT, ToyDevice, keep, look_up, same, toy_shape, toy_state

SHAPE = toy_shape()
PROMPT = list(range(1, 21))
OTHER = [30, 31, 32]


def make(
    folder: Path,
    capacity: int = 1 << 20,
    *,
    host: int = 0,
    model: str = "model",
    writer: Executor | None = None,
    background_bytes: int = 0,
) -> tuple[StateCache, ToyDevice]:
    device = ToyDevice(SHAPE)
    config = CacheConfig(host_capacity=host, disk=DiskConfig(folder, capacity, background_bytes=background_bytes))
    return make_cache(SHAPE, model, device, config, writer=writer), device


def found(cache: StateCache, device: ToyDevice, tokens: list[int]) -> bool:
    """Return True if the cache has a state after exactly these tokens, which must be right."""
    match = look_up(cache, tokens)
    if match.saved < len(tokens):
        cache.release(match)
        return False
    cache.restore(match, 1)
    assert same(device.read_state(1), toy_state(SHAPE, tokens))
    return True


def disk_used(cache: StateCache) -> int:
    return next(tier.used for tier in cache.stats().tiers if tier.tier == "disk")


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_restart_brings_everything_back(tmp_path: Path) -> None:
    cache, device = make(tmp_path, host=1 << 20)
    keep(cache, device, PROMPT)
    keep(cache, device, OTHER, logits=False)
    assert list(tmp_path.iterdir()) == []  # they were in host memory
    cache.close()

    again, device = make(tmp_path)
    assert disk_used(again) == folder_bytes(tmp_path)
    assert found(again, device, PROMPT)
    assert look_up(again, OTHER).miss is MissReason.NO_LOGITS
    assert look_up(again, [*OTHER, 5]).saved == 3
    known = {each.length: (each.kind, each.saves) for each in again.checkpoints()}
    assert known == {20: (CheckpointKind.PROMPT_END, 20), 3: (CheckpointKind.PROMPT_END, 3)}


def test_without_close_what_was_written_is_there(tmp_path: Path) -> None:
    cache, device = make(tmp_path)
    keep(cache, device, PROMPT)
    again, device = make(tmp_path)
    assert found(again, device, PROMPT)


def test_closing_keeps_what_is_worth_most(tmp_path: Path) -> None:
    first, device = make(tmp_path / "one", host=1 << 20)
    keep(first, device, PROMPT)
    first.close()
    one_file = folder_bytes(tmp_path / "one")

    cache, device = make(tmp_path / "two", 2 * one_file + 100, host=1 << 20)
    prompts = [[*range(100 * n, 100 * n + 20)] for n in range(1, 6)]
    for prompt in prompts:
        keep(cache, device, prompt)
    for wanted in (prompts[1], prompts[3]):
        assert found(cache, device, wanted)
    cache.close()
    again, device = make(tmp_path / "two", 2 * one_file + 100)
    assert [found(again, device, prompt) for prompt in prompts] == [False, True, False, True, False]


def test_the_bound_holds_when_it_was_lowered_between_runs(tmp_path: Path) -> None:
    cache, device = make(tmp_path)
    for start in range(0, 60, 10):
        keep(cache, device, [*range(start, start + 10)])
    bound = folder_bytes(tmp_path) // 2
    again, _ = make(tmp_path, bound)
    assert again.stats().checkpoints == 3
    assert disk_used(again) == folder_bytes(tmp_path) <= bound


def test_the_bound_keeps_the_files_that_were_used_last(tmp_path: Path) -> None:
    cache, device = make(tmp_path)
    ages: dict[Path, int] = {}
    for age, start in enumerate((10, 20, 30, 40)):
        keep(cache, device, [start, start + 1])
        (new,) = set(tmp_path.iterdir()) - set(ages)
        ages[new] = age
        os.utime(new, (1000 - age, 1000 - age))  # the first is the youngest
    assert found(cache, device, [40, 41])  # and the last has just been used
    again, device = make(tmp_path, folder_bytes(tmp_path) // 2)
    assert [found(again, device, [start, start + 1]) for start in (10, 20, 30, 40)] == [True, False, False, True]


def test_another_models_file_is_skipped_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, device = make(tmp_path, model="another")
    keep(cache, device, PROMPT)
    with caplog.at_level(logging.WARNING):
        again, device = make(tmp_path)
    assert "belongs to model another; the loaded model is model" in caplog.text
    assert not found(again, device, PROMPT)
    assert disk_used(again) == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_under_a_wrong_name_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, device = make(tmp_path)
    keep(cache, device, PROMPT)
    shutil.copy(only_file(tmp_path), tmp_path / "copy.state")
    with caplog.at_level(logging.WARNING):
        again, device = make(tmp_path)
    assert "copy.state is not named after its tokens" in caplog.text
    assert again.stats().checkpoints == 1
    assert found(again, device, PROMPT)


def test_what_a_crash_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    cache, device = make(tmp_path)
    keep(cache, device, PROMPT)
    (tmp_path / f"{only_file(tmp_path).name}.77.partial").write_bytes(b"half")
    again, device = make(tmp_path)
    assert found(again, device, PROMPT)
    assert only_file(tmp_path).suffix == ".state"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.booleans())
def test_a_flipped_bit_anywhere_is_never_believed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, restarted: bool
) -> None:
    folder = tmp_path_factory.mktemp("states")
    cache, device = make(folder)
    keep(cache, device, PROMPT)
    path = only_file(folder)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    if restarted:
        cache, device = make(folder)
    found(cache, device, PROMPT)  # a restored state is the right one


@pytest.mark.parametrize("length", [0, 7, 100, 600, -1])
def test_a_truncated_file_is_a_miss_that_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int) -> None:
    cache, device = make(tmp_path)
    keep(cache, device, PROMPT[:5])
    shorter = only_file(tmp_path)
    keep(cache, device, PROMPT)
    (path,) = set(tmp_path.iterdir()) - {shorter}
    path.write_bytes(path.read_bytes()[:length])
    with caplog.at_level(logging.WARNING):
        match = look_up(cache, PROMPT)
    assert "a checkpoint is lost" in caplog.text
    assert match.saved == 5  # the next shorter state is used
    cache.release(match)
    assert cache.stats().lost_files == 1
    assert disk_used(cache) == folder_bytes(tmp_path) == shorter.stat().st_size


def test_a_lost_file_is_the_reason_of_the_miss(tmp_path: Path) -> None:
    cache, device = make(tmp_path)
    keep(cache, device, PROMPT)
    only_file(tmp_path).unlink()
    assert look_up(cache, PROMPT).miss is MissReason.DAMAGED


def test_a_file_that_was_exchanged_is_not_believed(tmp_path: Path) -> None:
    cache, device = make(tmp_path)
    keep(cache, device, PROMPT)
    saved = read_full_state(only_file(tmp_path), SHAPE, "model")
    without_logits = SavedState(saved.origin, saved.tokens, Payload(saved.payload.state, None))
    save_full_state(only_file(tmp_path), without_logits)
    assert look_up(cache, PROMPT).miss is MissReason.DAMAGED


def test_a_disk_that_takes_no_files_loses_the_copy_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "states"
    cache, device = make(folder)
    folder.rmdir()
    with caplog.at_level(logging.WARNING):
        keep(cache, device, PROMPT)
    assert "can't be written" in caplog.text
    assert not found(cache, device, PROMPT)
    assert (cache.stats().lost_files, disk_used(cache)) == (1, 0)
    folder.mkdir()
    assert keep(cache, device, PROMPT)
    assert found(cache, device, PROMPT)


class Gate:
    """A job that blocks the writer's thread until the test opens it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        self.opened.wait()


def test_what_waits_for_the_writer_is_served_from_memory_and_may_be_dropped(tmp_path: Path) -> None:
    gate = Gate()
    writer = ThreadPoolExecutor(1)
    writer.submit(gate)
    cache, device = make(tmp_path, writer=writer, background_bytes=1 << 20)
    keep(cache, device, PROMPT)
    keep(cache, device, OTHER, root="tuned")
    assert list(tmp_path.iterdir()) == []
    assert found(cache, device, PROMPT)
    assert cache.drop_state("tuned") == 1
    gate.opened.set()
    cache.close()
    assert disk_used(cache) == only_file(tmp_path).stat().st_size


def test_a_copy_dropped_while_it_is_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    monkeypatch.setattr("rnn_engine.files.os.fsync", lambda descriptor: gate())
    cache, device = make(tmp_path, background_bytes=1 << 20)
    keep(cache, device, PROMPT)
    gate.entered.wait()
    assert cache.drop_state(ROOT) == 1
    gate.opened.set()
    cache.close()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_too_far_behind_is_not_waited_for(tmp_path: Path) -> None:
    gate = Gate()
    writer = ThreadPoolExecutor(1)
    writer.submit(gate)
    cache, device = make(tmp_path, writer=writer, background_bytes=10)
    assert keep(cache, device, PROMPT)  # alone it may exceed the bound
    assert not keep(cache, device, OTHER)
    stats = cache.stats()
    assert (stats.writes_refused, stats.not_stored) == (1, 1)
    gate.opened.set()
    cache.close()
    assert disk_used(cache) == only_file(tmp_path).stat().st_size


def test_a_copy_kept_again_while_the_one_before_is_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr("rnn_engine.files.os.fsync", lambda descriptor: gate())
    cache, device = make(tmp_path, background_bytes=1 << 20)
    keep(cache, device, PROMPT)
    gate.entered.wait()
    assert cache.drop_state(ROOT) == 1
    keep(cache, device, PROMPT, logits=False)
    gate.opened.set()
    cache.close()
    assert read_full_state(only_file(tmp_path), SHAPE, "model").payload.logits is None


def test_a_write_that_raises_is_logged_and_does_not_stop_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate, writer = Gate(), ThreadPoolExecutor(1)
    writer.submit(gate)
    cache, device = make(tmp_path, writer=writer, background_bytes=1 << 20)
    with monkeypatch.context() as patched:
        patched.setattr("rnn_engine_states.cache.tiers.disk.write_file", None)
        keep(cache, device, PROMPT)
        gate.opened.set()
        writer.submit(lambda: None).result()
    assert "TypeError" in caplog.text
    assert not found(cache, device, PROMPT)
    keep(cache, device, OTHER)
    cache.close()
    again, device = make(tmp_path)
    assert [found(again, device, prompt) for prompt in (PROMPT, OTHER)] == [False, True]


def test_closing_writes_what_waits_for_room(tmp_path: Path) -> None:
    cache, device = make(tmp_path, host=1 << 20, background_bytes=10)
    for start in range(0, 60, 10):
        keep(cache, device, [*range(start, start + 10)])
    cache.close()
    again, device = make(tmp_path)
    assert again.stats().checkpoints == 6


def test_files_written_in_the_background_survive_a_restart(tmp_path: Path) -> None:
    cache, device = make(tmp_path, background_bytes=1 << 20)
    prompts = [[*range(start, start + 10)] for start in range(0, 200, 10)]
    for prompt in prompts:
        keep(cache, device, prompt)
    cache.close()
    again, device = make(tmp_path)
    assert disk_used(again) == folder_bytes(tmp_path)
    assert all(found(again, device, prompt) for prompt in prompts)


def test_the_bound_counts_the_files_of_other_models_and_deletes_these_first(tmp_path: Path) -> None:
    cache, device = make(tmp_path, model="other")
    for age, start in enumerate((30, 10, 20)):
        before = set(tmp_path.iterdir())
        keep(cache, device, [start, start + 1])
        [new] = set(tmp_path.iterdir()) - before
        os.utime(new, (1000 + age, 1000 + age))
    others = sorted(tmp_path.iterdir(), key=modified)
    named = tmp_path / f"{uuid.uuid4()}.state"
    named.write_bytes(b"a named state in the same folder")
    size = others[0].stat().st_size
    mine, device = make(tmp_path, 3 * size)
    kept = []
    for start in (40, 50, 60, 70):
        keep(mine, device, [start, start + 1])
        kept.append([path.exists() for path in others])
    assert kept == [[False, True, True], [False, False, True], [False] * 3, [False] * 3]
    assert folder_bytes(tmp_path) - named.stat().st_size == disk_used(mine) == 3 * size
    make(tmp_path, 2 * size, model="third")
    assert folder_bytes(tmp_path) - named.stat().st_size == 2 * size
