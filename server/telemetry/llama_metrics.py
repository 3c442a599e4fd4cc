"""The metrics that llama-server has, under its names, for dashboards that were made for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rnn_engine.interface import EngineStats
from rnn_engine.telemetry import EngineCounters

_PREFIX = "llamacpp:"


class LlamaCollector(Collector):
    """Adds the numbers of all loaded models up, since llama-server has one."""

    def __init__(self, read: Callable[[], Iterable[tuple[EngineCounters, EngineStats]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        readings = list(self._read())
        every = [counters for counters, _ in readings]
        cached = sum(one.cached_tokens for one in every)
        prompt_tokens = sum(one.prompt_tokens.sum for one in every) - cached
        prompt_seconds = sum(one.first_token_seconds.sum - one.queue_seconds.sum for one in every)
        predicted = sum(one.generated_tokens for one in every)
        predicted_seconds = sum(one.inter_token_seconds.sum for one in every)
        steps = sum(one.steps for one in every)
        yield _counter("prompt_tokens", "Tokens of prompts that were run.", prompt_tokens)
        yield _counter("prompt_tokens_cached", "Tokens of prompts that were known and not run.", cached)
        yield _counter("prompt_seconds", "From getting a slot to the first token.", max(prompt_seconds, 0.0))
        yield _counter("tokens_predicted", "Tokens that were generated.", predicted)
        yield _counter("tokens_predicted_seconds", "Between tokens of a sequence.", predicted_seconds)
        yield _counter("n_decode", "Steps of the model that were run.", steps)
        yield _gauge("prompt_tokens_seconds", "Tokens of prompts a second.", prompt_tokens, prompt_seconds)
        yield _gauge("predicted_tokens_seconds", "Generated tokens a second.", predicted, predicted_seconds)
        yield _gauge("requests_processing", "Requests that hold a slot.", sum(stats.active for _, stats in readings))
        yield _gauge("requests_deferred", "Requests that wait for a slot.", sum(stats.queued for _, stats in readings))
        decoded = sum(one.decode_tokens for one in every)
        yield _gauge("n_busy_slots_per_decode", "Sequences that a step takes a token further.", decoded, steps)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _gauge(name: str, text: str, part: float, whole: float = 1.0) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=part / whole if whole > 0 else 0.0)
