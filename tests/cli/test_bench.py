"""`rnn-engine bench`: the runs, and the figures computed from the clock."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

from rnn_engine.cli.benchmark import Measurement, measure_decode, measure_prefill
from tests.support.cli import Command
from tests.support.fake_runner import FakeRunner, random_logits


def make_runner() -> FakeRunner:
    return FakeRunner(random_logits(257), num_slots=4, max_tokens=10)


def clock_of(*seconds: float) -> itertools.accumulate[float]:
    """Return a clock by which runs last as long as given: the times at which they begin and end."""
    return itertools.accumulate(time for duration in seconds for time in (1.0, duration))


def test_decode_steps_every_slot_by_one_token() -> None:
    runner = make_runner()
    result = measure_decode(runner, 3, 3, clock_of(0.5, 0.25, 0.125).__next__)
    assert result == Measurement("decode", slots=3, tokens=1, median_ms=250.0, tokens_per_second=12.0)
    assert len(runner.batches) == 5
    for batch in runner.batches:
        assert [(run.slot, len(run.tokens), run.rows) for run in batch] == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]


def test_prefill_runs_the_prompt_in_full_steps_from_an_empty_state() -> None:
    runner = make_runner()
    result = measure_prefill(runner, 25, 1, clock_of(0.5).__next__)
    assert result == Measurement("prefill", slots=1, tokens=25, median_ms=500.0, tokens_per_second=50.0)
    assert [(len(run.tokens), run.rows) for [run] in runner.batches] == [(10, 0), (10, 0), (5, 1)] * 3
    assert runner.slots[0] is not None
    assert len(runner.slots[0]) == 25


def test_command_prints_json(rnn_engine: Command, model_file: Path) -> None:
    arguments = ("--device", "cpu", "--slots", "1,2", "--lengths", "3", "--repeats", "1", "--json")
    report = json.loads(rnn_engine("bench", model_file, *arguments))
    assert (report["model"], report["device"], report["weights"]) == ("tiny.safetensors", "cpu", "f32")
    assert report["shape"]["vocab_size"] == 96
    assert [(line["phase"], line["slots"], line["tokens"]) for line in report["results"]] == [
        ("decode", 1, 1),
        ("decode", 2, 1),
        ("prefill", 1, 3),
    ]
    assert all(line["tokens_per_second"] > 0 for line in report["results"])


def test_command_prints_a_table(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("bench", model_file, "--device", "cpu", "--slots", "1", "--lengths", "2", "--repeats", "1")
    assert "tiny.safetensors: RWKV v7, layers 2, width 64, heads 4, head size 16, " in said
    assert [line.split()[0] for line in said.splitlines()[2:]] == ["phase", "decode", "prefill"]


def test_command_refuses_counts(rnn_engine: Command, model_file: Path) -> None:
    assert "'--slots': '0,1'; expected whole numbers" in rnn_engine("bench", model_file, "--slots", "0,1", code=2)
    assert "'--lengths': 'x'; expected whole numbers" in rnn_engine("bench", model_file, "--lengths", "x", code=2)


def test_kernels_are_timed_beside_what_the_device_reaches(
    rnn_engine: Command, model_file: Path, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    arguments = ("--slots", "1", "--lengths", "3", "--repeats", "1", "--profile")
    said = rnn_engine("bench", model_file, *arguments, "--report", page)
    assert "the device's peak speeds: " in said
    assert "decode, 1 slot(s): device" in said
    assert [line.split()[0] for line in said.splitlines() if " wkv7 " in line] == ["recurrence"] * 2
    html = page.read_text("utf-8")
    assert html.count('<td class="text">recurrence') == 2
    assert "tiny.safetensors on" in html
    assert html.count("<th>predicted ms") == 3
    assert "max-storage-buffers-per-shader-stage" in html
    assert html.count('<td class="text">stream ') > 0
    differs = re.search(r"differs from the processor's by at most (\S+) of the greatest", html)
    assert differs is not None
    assert 0 < float(differs[1]) < 1e-5
    assert "src=" not in html
    assert "href=" not in html
    report = json.loads(rnn_engine("bench", model_file, *arguments, "--json"))
    assert [profile["step"] for profile in report["profiles"]] == ["decode, 1 slot(s)", "prefill, 3 tokens"]
    assert {"part", "kernel", "dispatches", "seconds", "predicted", "moved_bytes", "operations"} == set(
        report["profiles"][0]["kernels"][0]
    )
    assert report["peaks"]["copy"] > 0
    assert all(line["predicted_ms"] is None for line in report["results"])  # the tests' device is software
    assert all(kernel["predicted"] == 0 for kernel in report["profiles"][0]["kernels"])


def test_a_report_without_a_profile_shows_whole_steps(rnn_engine: Command, model_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    rnn_engine(
        "bench", model_file, "--device", "cpu", "--slots", "1", "--lengths", "2", "--repeats", "1", "--report", page
    )
    assert "Whole steps" in page.read_text("utf-8")
    assert "Kernels" not in page.read_text("utf-8")


def test_numpy_has_no_kernels_to_time(rnn_engine: Command, model_file: Path) -> None:
    assert "the device 'cpu' has none" in rnn_engine("bench", model_file, "--device", "cpu", "--profile", code=1)
