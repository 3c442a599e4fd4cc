"""Families of Prometheus metrics, made of plain numbers and of the histograms that an engine keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from rnn_engine.telemetry import Histogram

PREFIX = "rnn_engine_"  # of all names


def gauge(name: str, text: str, values: float | Mapping[str, float], label: str = "") -> Metric:
    """Return a gauge with one value, or with one for each value of `label`."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=(label,) if label else ())
    for labels, value in _labelled(values):
        family.add_metric(labels, value)
    return family


def counter(name: str, text: str, values: float | Mapping[str, float], label: str = "") -> Metric:
    """Return a counter, likewise; its name ends with `_total`."""
    family = CounterMetricFamily(PREFIX + name, text, labels=(label,) if label else ())
    for labels, value in _labelled(values):
        family.add_metric(labels, value)
    return family


def histogram(name: str, text: str, values: Histogram) -> Metric:
    """Return a histogram."""
    family = HistogramMetricFamily(PREFIX + name, text)
    family.add_metric((), _buckets(values), values.sum)
    return family


def histograms(name: str, text: str, values: Mapping[str, Histogram], label: str) -> Metric:
    """Return a histogram for each value of `label`."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=(label,))
    for value, one in values.items():
        family.add_metric((value,), _buckets(one), one.sum)
    return family


def _labelled(values: float | Mapping[str, float]) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(values, Mapping):
        yield from (((name,), value) for name, value in values.items())
    else:
        yield (), values


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return how many values are at most each bound."""
    bounds = [f"{bound:g}" for bound in histogram.bounds] + ["+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
