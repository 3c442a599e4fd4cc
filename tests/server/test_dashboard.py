"""The dashboard of docs/grafana uses only existing metrics and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.metrics import families, full_name, labels_of

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana" / "rnn-engine.json"
BUCKET_LABELS = {"le"}
SERIES = {
    name: {*labels_of(family), "instance"} | (BUCKET_LABELS if name.endswith("_bucket") else set())
    for family in families()
    for name in (
        [f"{family.name}{part}" for part in ("_bucket", "_sum", "_count")]
        if family.type == "histogram"
        else [full_name(family)]
    )
}
PROCESS = {f"process_{name}" for name in ("resident_memory_bytes", "cpu_seconds_total", "open_fds", "max_fds")}


def targets() -> Iterator[tuple[str, str, str]]:
    """Yield each query with its panel's title and its legend."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


@pytest.mark.parametrize(("title", "query", "legend"), list(targets()), ids=lambda text: text[:40])
def test_every_query_names_what_there_is(title: str, query: str, legend: str) -> None:
    named = set(re.findall(r"\b(?:rnn_engine|process)_\w+", query))
    assert named
    assert named <= SERIES.keys() | PROCESS
    known = set.intersection(*(SERIES.get(name, {"instance"}) for name in named))
    grouped = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
    selected = set(re.findall(r"(\w+)=~?\"", query))
    assert grouped | selected <= known
    assert set(re.findall(r"{{(\w+)}}", legend)) <= (grouped or known)


def test_every_panel_has_a_place_of_its_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + line)
        for panel in panels
        for column in range(panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["h"])
    ]
    assert len(set(taken)) == len(taken)
