"""The report of a peer's process, and the table of all peers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest

from tools.bench.peers.__main__ import Runs, show_comparison
from tools.bench.peers.peer import Task, measure_peer


class FakePeer:
    """A `Peer` without a model."""

    def __init__(self, task: Task, can_batch: bool) -> None:
        self.can_batch = can_batch
        self.steps: list[int] = []
        self.task = task

    def decode(self, tokens: Sequence[int]) -> None:
        self.steps.append(len(tokens))

    def prefill(self, tokens: Sequence[int]) -> int:
        return len(tokens) + 1


@pytest.mark.parametrize("can_batch", [True, False])
def test_a_peer_is_measured_at_what_it_can_do(
    can_batch: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peers: list[FakePeer] = []

    def load(task: Task) -> FakePeer:
        peers.append(FakePeer(task, can_batch))
        return peers[-1]

    options = ["--version", "v7", "--setting", "here", "--slots", "1", "8", "--lengths", "16", "64", "--repeats", "3"]
    monkeypatch.setattr(sys, "argv", ["peer", "model.gguf", *options])
    measure_peer(load)
    found = json.loads(capsys.readouterr().out)
    decode = ["decode, 1 slot", *(["decode, 8 slots"] if can_batch else [])]
    by_clock = [name for name in found["figures"] if "processor" not in name]
    assert by_clock == ["prefill, 16 tokens", "prefill, 64 tokens", *decode]
    assert len(found["figures"]) == 2 * len(by_clock)
    assert found["choices"] == {"after 16 tokens": 17, "after 64 tokens": 65}
    assert set(peers[0].steps) == ({1, 8} if can_batch else {1})
    assert (peers[0].task.version, peers[0].task.setting, peers[0].task.num_slots) == ("v7", "here", 8)


def test_ratios_are_of_one_round_and_another_choice_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    ours = Runs("llvmpipe", {"decode": [10.0, 30.0]}, {"after 64 tokens": 5})
    theirs = Runs("peer", {"decode": [5.0, 10.0]}, {"after 64 tokens": 6})
    show_comparison("v6", [ours], [theirs])
    output = capsys.readouterr()
    assert "| v6 | decode | peer | 7.5 | 20.0 | 2.50 (2.00-3.00) |" in output.out
    assert "v6: peer finds another token likeliest after 64 tokens" in output.err
