"""`python -m tools.metrics`: write the reference in docs/metrics.md, every metric with its labels and meaning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric

from rnn_engine.interface import EngineInfo, EngineStats
from rnn_engine.telemetry import EngineCounters, Health
from rnn_engine.types import DeviceMemory
from rnn_engine.versions.v7.layout import AdapterRanks, ShapeV7
from rnn_engine_server.connections import ConnectionCounters
from rnn_engine_server.core.call import MemoryBudget
from rnn_engine_server.core.kept import KeptUsage
from rnn_engine_server.store.folder import Store
from rnn_engine_server.telemetry.metrics import EngineReadings, Readings, server_metrics
from rnn_engine_server.telemetry.records import CLIENT_LEFT, HttpCounters, RequestRecord
from rnn_engine_states.cache.config import CacheStats, TierStats
from rnn_engine_states.named.table import StateUsage
from tools.markdown import table

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
BEGIN = "<!-- The rest is made from the code by `python -m tools.metrics`; a test compares the two. -->\n"

_BOUND = "le"  # the label of a histogram's buckets


def renew(text: str) -> str:
    """Return the text of the document with a new reference. The text before the reference is unchanged."""
    return text.partition(BEGIN)[0] + BEGIN + "\n" + reference()


def reference() -> str:
    """Return a Markdown table of all metrics. It lists the values of a label if they are known at the start."""
    return table(("metric", ""), map(_row, families())) + "\n"


def families() -> list[Metric]:
    """Return every metric of the server, each with at least one sample."""
    return list(server_metrics(_readings()))


def full_name(family: Metric) -> str:
    """Return a metric's name as queries use it. For a histogram, queries add `_bucket`, `_sum` or `_count` to it."""
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


def _row(family: Metric) -> tuple[str, str]:
    labels = [name for name in labels_of(family) if name != "model"]
    name = full_name(family) + (f"{{{','.join(labels)}}}" if labels else "")
    kind = " (histogram)" if family.type == "histogram" else ""
    return f"`{name}`{kind}", " ".join(
        [family.documentation, *(text for label in labels for text in _values(family, label))]
    )


def _values(family: Metric, label: str) -> Iterator[str]:
    """Yield a sentence with the values of a label if there are several."""
    values = list(dict.fromkeys(sample.labels[label] for sample in family.samples))
    if len(values) > 1:
        yield f"`{label}`: {', '.join(values)}."


def labels_of(family: Metric) -> Iterator[str]:
    """Yield the names of a metric's labels, except the label of a histogram's buckets."""
    names = {name: None for sample in family.samples for name in sample.labels}
    yield from (name for name in names if name != _BOUND)


def _readings() -> Readings:
    """Return sample readings that cover every metric: of an idle engine, and of a server that one client left."""
    http = HttpCounters()
    http.ended(RequestRecord("GET", "/", status=CLIENT_LEFT))
    ranks = AdapterRanks(w=1, a=1, v=1, g=1)
    shape = ShapeV7(num_layers=1, width=1, ffn_width=1, vocab_size=1, num_heads=1, head_size=1, ranks=ranks)
    folders = dict.fromkeys(("cache", "states"), DOCUMENT.parent)
    memory = DeviceMemory(1)
    info = EngineInfo("model", shape, "device", "f16", 1, 1, "world", 0, device_memory=memory, folders=folders)
    cache = CacheStats((TierStats("host", 0),))
    states = StateUsage(0, 0, 0, 0, 0)
    stats, counters = EngineStats(0, 0), EngineCounters()
    engine = EngineReadings(info, Health(), stats, counters, cache, states)
    kept = dict.fromkeys(("conversations", "slot_prompts", "collections", "collection_vectors"), KeptUsage(0, 0, 0))
    jobs = Store().readings()
    return Readings({"model": True}, {"model": engine}, http, ConnectionCounters(), MemoryBudget(0), kept, jobs)


if __name__ == "__main__":
    DOCUMENT.write_text(renew(DOCUMENT.read_text()))
