"""Requests whose states are in files wait for them in the queue; other requests don't wait for files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.types import ModelShape
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.files.full import SavedState, read_full_state
from tests.support.clients import Clients
from tests.support.fake_runner import FakeRunner, random_logits

VOCAB_SIZE = 257
KEPT = list(range(1, 11))
OTHER = list(range(50, 60))


class SlowFiles:
    """A reader of files that blocks until `let_go`, and records the threads that call it."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.threads: set[int] = set()
        self.num_reads = 0

    def read(self, path: Path, shape: ModelShape, model: str | None) -> SavedState:
        self.threads.add(threading.get_ident())
        self.num_reads += 1
        assert self.let_go.wait(timeout=60)
        return read_full_state(path, shape, model)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> SlowFiles:
    files = SlowFiles()
    monkeypatch.setattr("rnn_engine_states.cache.tiers.disk.read_full_state", files.read)
    return files


@pytest.fixture
def clients(tmp_path: Path) -> Clients:
    """Return clients of a scheduler with two slots. Its cache has the state after KEPT only in a file."""
    runner = FakeRunner(random_logits(VOCAB_SIZE), num_slots=2)
    config = CacheConfig(host_capacity=0, disk=DiskConfig(tmp_path, background_bytes=0))
    clients = Clients(runner, lambda token: bytes([token % 256]), make_cache(runner.shape, "model", runner, config))
    clients.ask(ask(KEPT, 0))
    return clients


def ask(prompt: list[int], max_tokens: int) -> GenerateRequest:
    return GenerateRequest(prompt, max_tokens=max_tokens, stop_tokens=(), sampling=SamplingParams(seed=1))


def test_others_decode_on_while_a_state_is_read(clients: Clients, files: SlowFiles) -> None:
    other = clients.send(ask(OTHER, 20))
    clients.step()
    waiting = clients.send(ask([*KEPT, 11, 12], 3))
    while not clients.heard[other].ended:
        clients.step()
    assert len(clients.heard[other].tokens) == 20
    assert clients.heard[waiting].events == []
    assert not clients.scheduler.has_work  # there is nothing to step for
    files.let_go.set()
    clients.run()
    assert clients.heard[waiting].cached_tokens == len(KEPT)
    assert len(clients.heard[waiting].tokens) == 3
    assert threading.get_ident() not in files.threads


def test_requests_for_one_state_share_one_read(clients: Clients, files: SlowFiles) -> None:
    keys = [clients.send(ask([*KEPT, number], 0)) for number in (20, 30, 40)]
    files.let_go.set()
    clients.run()
    assert [clients.heard[key].cached_tokens for key in keys] == [len(KEPT)] * 3
    assert files.num_reads == 1


def test_one_that_waits_for_its_state_may_leave(clients: Clients, files: SlowFiles) -> None:
    key = clients.send(ask([*KEPT, 11], 3))
    assert clients.cache is not None
    assert sum(record.locks for record in clients.cache.checkpoints()) == 1
    clients.scheduler.cancel(key)
    assert sum(record.locks for record in clients.cache.checkpoints()) == 0
    assert clients.scheduler.num_waiting == 0
    files.let_go.set()


def test_a_damaged_file_costs_its_tokens_and_no_answer(clients: Clients, tmp_path: Path) -> None:
    clients.ask(ask([*KEPT, *OTHER], 0))
    assert clients.cache is not None
    longest = max(tmp_path.iterdir(), key=lambda path: (path.stat().st_size, path.stat().st_mtime_ns))
    longest.write_bytes(longest.read_bytes()[:200])
    key = clients.send(ask([*KEPT, *OTHER, 7], 2))
    clients.run()
    assert clients.heard[key].cached_tokens == len(KEPT)
    assert clients.cache.stats().lost_files == 1
