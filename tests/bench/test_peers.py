"""The report of a peer's process, and the table of all peers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from tools.bench import peer as measuring
from tools.bench.peer import LENGTHS, measure
from tools.bench.peers import show_comparison


class FakePeer:
    """A `Peer` without a model, and its clock: a step takes 0.1 s, a token of a prompt 0.01 s."""

    def __init__(self, can_batch: bool) -> None:
        self.can_batch = can_batch
        self.seconds = 0.0
        self.steps: list[int] = []

    def decode(self, tokens: Sequence[int], steps: int) -> None:
        self.steps += [len(tokens)] * steps
        self.seconds += 0.1 * steps

    def prefill(self, tokens: Sequence[int]) -> int:
        self.seconds += 0.01 * len(tokens)
        return len(tokens) + 1


@pytest.mark.parametrize("can_batch", [True, False])
def test_a_peer_is_measured_at_what_it_can_do(can_batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = FakePeer(can_batch)
    clocks = SimpleNamespace(perf_counter=lambda: peer.seconds, process_time=lambda: 2 * peer.seconds)
    monkeypatch.setattr(measuring, "time", clocks)
    found = measure(lambda: peer)
    load, *speeds, held = found["figures"]
    assert (load, held) == ("seconds to load, with a token", "MB held")
    by_clock = [name for name in speeds if "processor" not in name]
    prompts = [f"prefill, {length} tokens" for length in LENGTHS]
    assert by_clock == [*prompts, "decode, 1 slot", *(["decode, 8 slots"] if can_batch else [])]
    assert len(speeds) == 2 * len(by_clock)
    assert found["choice"] == LENGTHS[-1] + 1
    assert set(peer.steps) == ({1, 8} if can_batch else {1})
    figures = found["figures"]
    for name in by_clock:
        expected = 100 if name in prompts else 80 if "8 slots" in name else 10
        assert figures[name] == pytest.approx(expected)
        assert figures[f"{name}, a processor second"] == pytest.approx(expected / 2)


def test_ratios_are_of_one_round_and_another_choice_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    results = {"llvmpipe": {"decode": [10.0, 30.0]}, "peer": {"decode": [5.0, 10.0]}}
    show_comparison("v6", results, ["peer"], {"llvmpipe": 5, "peer": 6})
    output = capsys.readouterr()
    assert "| | peer | llvmpipe | times (least-greatest) |" in output.out
    assert "| decode | 7.5 | 20.0 | 2.50 (2.00-3.00) |" in output.out
    assert "v6: peer finds another token likeliest than llvmpipe" in output.err
