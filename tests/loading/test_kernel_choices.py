"""The choice of kernels at loading: fixed ones, those kept for the device, or those found by a search."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from rnn_engine.forward import GpuRunner
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.tuner import Choice, Chosen
from rnn_engine.forward.tuning import MatMulClass
from rnn_engine.forward.variants import KernelLimits, MatMulVariant, StreamVariant, TiledVariant
from rnn_engine.gpu import Device, DeviceInfo
from rnn_engine.loading.kernel_choices import (
    KeptChoices,
    TuneOrder,
    choices_folder,
    choose_kernels,
    kernel_limits,
    kernel_texts,
    read_choices,
    version_of,
)
from rnn_engine.loading.runner import RunnerSize, load_runner
from tests.support.models import random_model, tiny_shape
from tests.support.tuned import load_with_matmuls

FIXED, FAST = StreamVariant(tokens=1), StreamVariant(tokens=1, panels=2)
KINDS = (MatMulClass("f16", 64, 32), MatMulClass("f16", 256, 32))
LIMITS = KernelLimits()


def choice(kind: MatMulClass, variant: MatMulVariant = FAST) -> Choice:
    return Choice(kind, 1, variant, 2e-3 if variant == FAST else 3e-3, FIXED, 3e-3)


class Search:
    """A stand-in for the search, which finds the same kernel for all work without a known one."""

    def __init__(self, found: Chosen) -> None:
        self.found = found
        self.seconds: list[float] = []

    def __call__(self, _tuner: object, seconds: float, _report: object, *, known: Iterable[Any], **_: object) -> Chosen:
        self.seconds.append(seconds)
        return {key: each for key, each in self.found.items() if key[0] not in set(known)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("rnn_engine.files.sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return choices_folder()


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    search = Search({(kind, 1): choice(kind, variant) for kind, variant in zip(KINDS, (FAST, FIXED), strict=True)})
    monkeypatch.setattr(
        "rnn_engine.loading.kernel_choices.KernelTuner.search", lambda *given, **named: search(*given, **named)
    )
    return search


@pytest.fixture(scope="module")
def model() -> Iterator[tuple[GpuRunner, MatMulKernels]]:
    runner, matmuls = load_with_matmuls(random_model(tiny_shape(), seed=3), max_tokens=8)
    with closing(runner):
        yield runner, matmuls


@pytest.fixture
def loaded(model: tuple[GpuRunner, MatMulKernels]) -> tuple[GpuRunner, MatMulKernels]:
    model[1].tuning = replace(model[1].tuning, found={})
    return model


def choose(loaded: tuple[GpuRunner, MatMulKernels], order: TuneOrder) -> dict[tuple[MatMulClass, int], MatMulVariant]:
    choose_kernels(order, *loaded, LIMITS, lambda *_: None)
    return dict(loaded[1].tuning.found)


def test_fixed_choices_read_and_keep_nothing(
    loaded: tuple[GpuRunner, MatMulKernels], search: Search, folder: Path
) -> None:
    assert choose(loaded, TuneOrder()) == {}
    assert search.seconds == []
    assert not folder.exists()


def test_what_was_found_is_taken_where_it_is_faster_and_kept_for_the_next_load(
    loaded: tuple[GpuRunner, MatMulKernels], search: Search, folder: Path
) -> None:
    assert choose(loaded, TuneOrder(5)) == {(KINDS[0], 1): FAST}
    assert len(list(folder.iterdir())) == 1
    assert KeptChoices.of(loaded[0].device).read(LIMITS) == search.found
    search.found = {}
    assert choose(loaded, TuneOrder(7)) == {(KINDS[0], 1): FAST}
    assert choose(loaded, TuneOrder(None)) == {(KINDS[0], 1): FAST}  # a software device takes only what is kept
    assert search.seconds == [5, 7]


def test_a_kernel_in_place_of_a_fixed_choice_that_the_device_refuses_is_kept_too(
    loaded: tuple[GpuRunner, MatMulKernels], search: Search
) -> None:
    search.found = {(KINDS[0], 1): replace(choice(KINDS[0]), default_measured=math.inf)}
    assert choose(loaded, TuneOrder(5)) == {(KINDS[0], 1): FAST}
    assert KeptChoices.of(loaded[0].device).read(LIMITS) == search.found


def test_a_search_anew_replaces_what_it_finds_and_leaves_other_models_alone(
    loaded: tuple[GpuRunner, MatMulKernels], search: Search
) -> None:
    choose(loaded, TuneOrder(5))
    other = StreamVariant(tokens=1, panels=4)
    search.found = {(KINDS[1], 1): replace(choice(KINDS[1]), variant=other)}
    told: dict[Any, Any] = {}
    assert choose(loaded, TuneOrder(5, anew=True, on_found=told.update)) == {(KINDS[0], 1): FAST, (KINDS[1], 1): other}
    assert told == search.found


@pytest.mark.parametrize(
    ("kind", "num_bytes", "seconds"),
    [("discrete", 1 << 30, 10), ("integrated", 1 << 26, 10), ("discrete", 1 << 20, 0), ("software", 1 << 30, 0)],
)
def test_it_searches_of_itself_where_that_pays(kind: str, num_bytes: int, seconds: float) -> None:
    class OfKind:
        info = DeviceInfo(0, "any", kind, "any", "any")

    device: Device = OfKind()  # type: ignore[assignment]
    assert TuneOrder(None).budget(device, num_bytes) == seconds
    assert TuneOrder(3).budget(device, num_bytes) == 3


def _cut(record: dict[str, Any]) -> str:
    return json.dumps(record)[:-20]


def _changed(record: dict[str, Any]) -> str:
    record["choices"][0]["tokens"] = 3
    return json.dumps(record)


def _of_other_numbers(record: dict[str, Any]) -> str:
    record["choices"][0]["kind"]["number"] = "int8"  # its kernels can't multiply these
    return json.dumps(record)


def _list(_record: dict[str, Any]) -> str:
    return "[1]"


@pytest.mark.parametrize("damage", [_cut, _changed, _of_other_numbers, _list])
def test_a_damaged_record_is_left_out_with_one_line(
    loaded: tuple[GpuRunner, MatMulKernels],
    search: Search,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[dict[str, Any]], str],
) -> None:
    choose(loaded, TuneOrder(5))
    (path,) = folder.iterdir()
    path.write_text(damage(json.loads(path.read_text())))
    with caplog.at_level(logging.WARNING):
        assert choose(loaded, TuneOrder(None)) == {}
    (line,) = caplog.messages
    assert str(path) in line
    assert choose(loaded, TuneOrder(5)) == {(KINDS[0], 1): FAST}  # the record is written over
    assert KeptChoices.of(loaded[0].device).read(LIMITS) == search.found


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        (KINDS[0], StreamVariant(1, splits=16, unroll=4)),
        (KINDS[1], TiledVariant(64, 32, eights=4)),
        (replace(KINDS[0], number="int8"), TiledVariant(32, 64, number="int8")),
    ],
)
def test_a_choice_comes_back_from_its_record(kind: MatMulClass, variant: MatMulVariant) -> None:
    made = replace(choice(kind, variant), default=StreamVariant(1, number=kind.number))
    assert read_choices(json.loads(json.dumps({"choices": [asdict(made)]}))) == [made]


@pytest.mark.parametrize("variant", [{}, {"speed": 3}, {"tokens": None}, {"rows": 64}, [1]])
def test_a_record_of_something_else_is_refused(variant: object) -> None:
    with pytest.raises(ValueError, match="validation error"):
        read_choices({"choices": [{**asdict(choice(KINDS[0])), "variant": variant}]})


def test_a_record_of_another_device_or_of_kernels_that_can_not_run_is_left_out(
    loaded: tuple[GpuRunner, MatMulKernels], search: Search, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choose(loaded, TuneOrder(5))
    kept = KeptChoices.of(loaded[0].device)
    with caplog.at_level(logging.WARNING):
        assert replace(kept, key={**kept.key, "driver": "another"}).read(LIMITS) == {}
        assert kept.read(replace(LIMITS, threads=4)) == {}
    assert len(caplog.messages) == 2
    assert kept.read(LIMITS) == search.found


def test_a_folder_that_can_not_be_written_costs_a_line_and_nothing_else(
    loaded: tuple[GpuRunner, MatMulKernels], search: Search, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file in its place")
    with caplog.at_level(logging.WARNING):
        assert choose(loaded, TuneOrder(5)) == {(KINDS[0], 1): FAST}
    assert len(caplog.messages) == 1


def test_a_load_takes_the_kernels_that_are_kept(loaded: tuple[GpuRunner, MatMulKernels], folder: Path) -> None:
    device = loaded[0].device
    kinds = {part.kind for matmul in loaded[1].bound for part, _ in matmul.parts}
    KeptChoices.of(device).write({(kind, 1): choice(kind) for kind in kinds})
    runner = load_runner(
        random_model(tiny_shape(), seed=3), size=RunnerSize(2, max_tokens=8), checked=True, tune=TuneOrder(None)
    )
    with closing(runner):
        assert isinstance(runner, GpuRunner)
        products = [each for each in runner.plan(1, 1, 1).dispatches if each.kernel.label == "matmul"]
        assert all("const PANELS = 2u;" in each.kernel.source.text for each in products)
        assert all("const SPLITS = 1u;" in each.kernel.source.text for each in products)


def test_the_limits_are_those_of_the_device(loaded: tuple[GpuRunner, MatMulKernels]) -> None:
    limits = kernel_limits(loaded[0].device)
    assert limits.threads >= 256
    assert limits.workgroup_bytes >= 1 << 14
    assert limits.has_f16 == loaded[0].device.has_f16


def test_the_version_of_the_kernels_is_that_of_what_the_compiler_sees() -> None:
    text = "// What it does.\nfn one() {\n    return 1; // or so\n}\n"
    same = "fn one() {\n\n// Another comment.\n  return 1;\n}"
    assert version_of({"a.wgsl": text, "b.wgsl": ""}) == version_of({"b.wgsl": "\n", "a.wgsl": same})
    for other in ({"a.wgsl": text}, {"a.wgsl": text.replace("1", "2"), "b.wgsl": ""}, {"c.wgsl": text, "b.wgsl": ""}):
        assert version_of(other) != version_of({"a.wgsl": text, "b.wgsl": ""})


def test_the_version_of_the_kernels_covers_all_that_they_include() -> None:
    texts = kernel_texts()
    included = {name for text in texts.values() for name in re.findall(r"^#include (\w+)$", text, re.MULTILINE)}
    chosen = {name for name in included if name.isupper()}  # by the variant, from files that are listed
    assert chosen == {"PRODUCTS", "WEIGHTS", "CODES", "INPUTS", "NUMBER"}
    assert {f"{name}.wgsl" for name in included - chosen} <= set(texts)
    assert not any("/*" in text for text in texts.values())  # only comments up to the end of a line are left out
