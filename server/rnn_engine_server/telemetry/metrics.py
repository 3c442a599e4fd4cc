"""The metrics of a server, in the text format of Prometheus. docs/metrics.md is made from them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, Self, TypeAlias, get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rnn_engine.interface import EngineInfo, EngineLike, EngineStats
from rnn_engine.telemetry import EngineCounters, Health, HealthStatus, Histogram
from rnn_engine_server.connections import ConnectionCounters
from rnn_engine_server.core.call import MemoryBudget
from rnn_engine_server.core.kept import KeptUsage
from rnn_engine_server.core.routing import AppKey
from rnn_engine_server.models.registry import ModelRegistry
from rnn_engine_server.store.folder import StoreReadings
from rnn_engine_server.telemetry.records import HttpCounters
from rnn_engine_states.cache.config import CacheStats
from rnn_engine_states.named.table import StateUsage
from rnn_engine_states.shared.config import StoreCounters

PREFIX = "rnn_engine_"  # of all names


Values: TypeAlias = float | Mapping[Any, float]
"""One value, or one for each value of a label."""


def gauge(name: str, text: str, values: Values, label: str = "") -> Metric:
    """Return a Prometheus gauge."""
    return _with_values(GaugeMetricFamily(PREFIX + name, text, labels=(label,) if label else ()), values)


def counter(name: str, text: str, values: Values, label: str = "") -> Metric:
    """Return a Prometheus counter. Its name gets the ending `_total`."""
    return _with_values(CounterMetricFamily(PREFIX + name, text, labels=(label,) if label else ()), values)


def _with_values(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    if not isinstance(values, Mapping):
        family.add_metric((), values)
        return family
    for key, value in values.items():
        family.add_metric((key.value if isinstance(key, Enum) else key,), value)
    return family


def histogram(name: str, text: str, values: Histogram | Mapping[str, Histogram], label: str = "") -> Metric:
    """Return a Prometheus metric with a histogram, or with one for each value of `label`."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=(label,) if label else ())
    for key, one in values.items() if isinstance(values, Mapping) else [("", values)]:
        bounds = [f"{bound:g}" for bound in one.bounds] + ["+Inf"]
        buckets = list(zip(bounds, accumulate(one.counts), strict=True))  # how many values are up to each bound
        family.add_metric((key,) if label else (), buckets, one.sum)
    return family


@dataclass(frozen=True, slots=True)
class EngineReadings:
    """One model's properties and counts, read from its engine at one moment, from which its metrics are made."""

    info: EngineInfo
    health: Health
    stats: EngineStats
    counters: EngineCounters
    cache: CacheStats
    states: StateUsage

    @classmethod
    def of(cls, engine: EngineLike) -> Self:
        cache = engine.cache_stats() or CacheStats(())
        return cls(engine.info, engine.health(), engine.stats(), engine.counters(), cache, engine.states.usage())


@dataclass(frozen=True, slots=True)
class Readings:
    """The counts of the server and of all its engines, read at one moment, from which all metrics are made."""

    loaded: Mapping[str, bool]  # of each model, by its name
    engines: Mapping[str, EngineReadings]  # of the models that are loaded
    http: HttpCounters
    connections: ConnectionCounters
    budget: MemoryBudget
    kept: Mapping[str, KeptUsage]  # of clients' bodies, by what they are
    store: StoreReadings

    @classmethod
    def of(
        cls,
        models: ModelRegistry,
        http: HttpCounters,
        connections: ConnectionCounters,
        budget: MemoryBudget,
        kept: Callable[[], Mapping[str, KeptUsage]],
        store: Callable[[], StoreReadings],
    ) -> Self:
        """Read the current counts of all engines, in-memory stores and jobs; store the other arguments unchanged."""
        engines = {model.name: model.open_engine for model in models}
        readings = {name: EngineReadings.of(engine) for name, engine in engines.items() if engine is not None}
        loaded = {name: engine is not None for name, engine in engines.items()}
        return cls(loaded, readings, http, connections, budget, kept(), store())


class Metrics(Collector):
    """All metrics of one application, in a Prometheus registry."""

    def __init__(self, read: Callable[[], Readings]) -> None:
        """Register the metrics. `read` returns the current counts; each scrape calls it once."""
        self.started = int(time.time())
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._read = read

    def render(self) -> bytes:
        """Return all metrics in Prometheus's format. For any thread. Takes some milliseconds, or waits for a disk."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        readings = self._read()
        yield from server_metrics(readings)
        yield from _llama_metrics(readings.engines.values())


def server_metrics(readings: Readings) -> Iterator[Metric]:
    """Yield the metrics of the server and its engines, without those under llama-server's names."""
    loaded = {name: float(is_loaded) for name, is_loaded in readings.loaded.items()}
    yield gauge("model_loaded", "1 if the model is loaded now, 0 if not.", loaded, "model")
    yield from _by_model({name: list(_of_engine(engine)) for name, engine in readings.engines.items()})
    yield from _http(readings.http)
    yield from _connections(readings.connections, readings.budget)
    yield from _kept(readings.kept)
    yield from _jobs(readings.store)


def _by_model(metrics: Mapping[str, Sequence[Metric]]) -> Iterator[Metric]:
    """Merge several models' metrics: yield each metric once, with the samples of all, labelled by the model's name."""
    for families in zip(*metrics.values(), strict=True):
        family = families[0]
        family.samples = [
            sample._replace(labels={"model": name, **sample.labels})
            for name, each in zip(metrics, families, strict=True)
            for sample in each.samples
        ]
        yield family


def _of_engine(readings: EngineReadings) -> Iterator[Metric]:
    yield from _facts(readings.info, readings.health, readings.stats)
    yield from _requests(readings.counters)
    yield from _tokens(readings.counters)
    yield from _steps(readings.counters)
    yield from _cache(readings.cache)
    yield from _states(readings.states)


def _facts(info: EngineInfo, health: Health, stats: EngineStats) -> Iterator[Metric]:
    facts = {"model": info.model, "device": info.device, "weights": info.weights, "version": version("rnn-engine")}
    yield InfoMetricFamily(PREFIX.rstrip("_"), "The model, its device, and the version of rnn-engine.", value=facts)
    statuses = {status: float(status == health.status) for status in get_args(HealthStatus)}
    yield gauge("health", "1 for the present status of the engine, 0 for the others.", statuses, "status")
    yield gauge("slots", "How many requests can run at a time.", info.num_slots)
    yield gauge("slots_in_use", "Requests that hold a slot.", stats.active)
    yield gauge("queued_requests", "Requests that wait for a slot.", stats.queued)
    text = "Memory that weights, states and buffers take on the device; absent if the model runs on the CPU."
    yield gauge("device_memory_bytes", text, {} if info.device_bytes is None else info.device_bytes)
    layers = {f"{part.first_layer}-{part.last_layer}": part.num_bytes or 0 for part in info.parts}
    yield gauge("part_memory_bytes", "The same for the layers on each of several devices.", layers, "layers")
    text = "Bytes that are free on the disk of a folder that the engine writes to."
    yield gauge("disk_free_bytes", text, dict(_free_bytes(info.folders)), "folder")


def _free_bytes(folders: Mapping[str, Path]) -> Iterator[tuple[str, int]]:
    for use, path in folders.items():
        with suppress(OSError):  # the folder is gone; the code that writes to it reports that
            yield use, shutil.disk_usage(path).free


def _requests(counters: EngineCounters) -> Iterator[Metric]:
    text = "Requests to the engine, by how they ended. One HTTP request may make several, such as one for each choice."
    yield counter("requests", text, counters.outcomes, "outcome")
    yield histogram("queue_seconds", "Time from a request's arrival until it gets a slot.", counters.queue_seconds)
    text = "Time from a request's arrival until its first token is drawn."
    yield histogram("time_to_first_token_seconds", text, counters.first_token_seconds)
    text = "Time between two tokens of a sequence, measured between the ends of two steps."
    yield histogram("inter_token_seconds", text, counters.inter_token_seconds)
    text = "Time from a request's arrival to its end, for requests that were not cut short."
    yield histogram("request_seconds", text, counters.request_seconds)
    text = "Time to compile a grammar that was not kept, or to find that it is wrong."
    yield histogram("grammar_compile_seconds", text, counters.grammar_compile_seconds)
    text = "Time to find which tokens a grammar allows next, for each token that is drawn; the device runs meanwhile."
    yield histogram("grammar_mask_seconds", text, counters.mask_seconds)
    text = "Seconds that steps have waited for masks, at most a few milliseconds a step."
    yield counter("grammar_mask_wait_seconds", text, counters.mask_wait_seconds)
    text = (
        "Time that a request waited for a mask after steps stopped waiting for it; its sequence took part in no "
        "step meanwhile."
    )
    yield histogram("grammar_late_mask_seconds", text, counters.late_mask_seconds)
    yield histogram(
        "request_prompt_tokens", "Tokens of a request's prompt, including cached ones.", counters.prompt_tokens
    )
    yield histogram("request_generated_tokens", "Tokens that a request generated.", counters.completion_tokens)


def _tokens(counters: EngineCounters) -> Iterator[Metric]:
    yield counter("prompt_tokens", "Tokens of prompts, including cached ones.", counters.prompt_tokens.sum)
    text = "Tokens of prompts that were not run, since the cache had a state after them."
    yield counter("cached_prompt_tokens", text, counters.cached_tokens)
    yield counter("generated_tokens", "Tokens that were generated.", counters.generated_tokens)
    text = "Tokens that were run speculatively, in a text that repeats itself."
    yield counter("draft_tokens", text, counters.draft_tokens)
    yield counter("accepted_draft_tokens", "Speculative tokens that were drawn.", counters.accepted_tokens)
    text = "Rows of logits that were read whole, since their likeliest few did not settle a draw."
    yield counter("whole_rows", text, counters.whole_rows)
    by_phase = {"prefill": counters.prefill_tokens, "decode": counters.decode_tokens}
    yield counter("run_tokens", "Tokens that went through the model.", by_phase, "phase")


def _steps(counters: EngineCounters) -> Iterator[Metric]:
    yield counter("steps", "Steps of the model that were run.", counters.steps)
    yield counter("failed_steps", "Steps that the device refused or failed.", counters.failed_steps)
    text = "Times that the device had failed, was opened again, and answered."
    yield counter("device_reopens", text, counters.device_reopens)
    text = "Times that a request gave its slot to another client's before its end, to go on later."
    yield counter("suspensions", text, counters.suspensions)
    yield counter(
        "unsound_runs", "Runs that ended a request, because its logits were not finite.", counters.unsound_runs
    )
    parts = {"host": counters.step_host_seconds, "device": counters.step_device_seconds}
    text = "Time of a step: on the host while the device has nothing to do, then on the device."
    yield histogram("step_seconds", text, parts, "part")
    yield histogram("tokens_per_step", "Tokens that a step runs, of all requests together.", counters.step_tokens)


def _http(http: HttpCounters) -> Iterator[Metric]:
    yield gauge("http_requests_in_progress", "HTTP requests that have not ended.", http.in_progress)
    text = "HTTP requests; 499 is the status of requests whose client left."
    requests = CounterMetricFamily(f"{PREFIX}http_requests", text, labels=("method", "route", "status"))
    for (method, route, status), count in list(http.requests.items()):
        requests.add_metric((method, route, str(status)), count)
    yield requests
    text = "Time from the head of an HTTP request to the end of its answer."
    yield histogram("http_request_duration_seconds", text, dict(http.seconds), "route")
    text = "HTTP requests whose answer was cut short or refused, by cause."
    yield counter("http_requests_aborted", text, http.aborted, "cause")
    text = (
        "Requests that were refused because too little of their client's quota for a minute was left, by the kind "
        "of quota."
    )
    yield counter("rate_limited", text, dict(http.over_quota), "quota")


def _connections(connections: ConnectionCounters, budget: MemoryBudget) -> Iterator[Metric]:
    yield gauge("connections", "Open connections.", connections.open)
    text = "Connections that the server closed or refused, by reason."
    yield counter("connections_closed", text, connections.closed, "reason")
    yield gauge("request_memory_bytes", "Host memory that the bodies of running requests take.", budget.held)
    yield gauge(
        "request_memory_capacity_bytes", "The most host memory for the bodies of running requests.", budget.capacity
    )


def _kept(kept: Mapping[str, KeptUsage]) -> Iterator[Metric]:
    text = (
        "What is kept of requests for later ones, in bytes: conversations with their responses and documents of "
        "collections on the disk, prompts of slots and vectors that were searched in host memory."
    )
    yield gauge("kept_bytes", text, {kind: usage.num_bytes for kind, usage in kept.items()}, "kind")
    text = "Values that are kept of requests for later ones. Those of vectors are collections."
    yield gauge("kept_values", text, {kind: usage.values for kind, usage in kept.items()}, "kind")
    text = "Values of earlier requests that were dropped to make room."
    yield counter("kept_evictions", text, {kind: usage.evictions for kind, usage in kept.items()}, "kind")


def _cache(stats: CacheStats) -> Iterator[Metric]:
    def tiers(name: str) -> Mapping[str, float]:
        return {tier.tier: getattr(tier, name) for tier in stats.tiers}

    yield gauge("cache_entries", "States that the cache keeps.", tiers("copies"), "tier")
    yield gauge("cache_bytes", "Bytes of states that the cache keeps.", tiers("used"), "tier")
    yield gauge("cache_capacity_bytes", "The most bytes of states that the cache keeps.", tiers("capacity"), "tier")
    text = "Look-ups that found a state, by the quickest tier that had it."
    yield counter("cache_hits", text, tiers("hits"), "tier")
    yield counter("cache_misses", "Look-ups that found no state, by reason.", stats.misses, "reason")
    yield counter("cache_exact_hits", "Look-ups that found a state of the whole prompt.", stats.exact_hits)
    yield counter("cache_looked_up_tokens", "Tokens of the prompts that were looked up.", stats.tokens_looked_up)
    yield counter("cache_saved_tokens", "Tokens of looked-up prompts that need not be run.", stats.tokens_saved)
    yield counter("cache_stored", "New states that a tier accepted.", tiers("stored"), "tier")
    yield counter("cache_promotions", "Copies that a tier got because of a hit.", tiers("promotions"), "tier")
    text = "Copies that a tier got because a quicker one was full."
    yield counter("cache_demotions", text, tiers("demotions"), "tier")
    yield counter("cache_evictions", "Copies that were evicted from a tier.", tiers("evictions"), "tier")
    yield counter("cache_not_stored", "States for which no tier had room.", stats.not_stored)
    text = "Copies that were not written to disk, because too many waited to be."
    yield counter("cache_refused_writes", text, stats.writes_refused)
    yield counter("cache_lost_files", "Files that were damaged, gone, or could not be written.", stats.lost_files)
    yield counter("cache_failed_writes", "Files that could not be written to disk.", stats.failed_writes)
    yield gauge("cache_ghost_entries", "Known paths of tokens whose states were evicted.", stats.ghosts)
    yield gauge(
        "cache_index_bytes", "Host memory besides the states, in bytes: tokens, records, logits.", stats.index_bytes
    )
    yield gauge(
        "cache_index_capacity_bytes", "The most host memory besides the states, in bytes.", stats.index_capacity
    )
    yield from _store(stats.store)


def _store(store: StoreCounters | None) -> Iterator[Metric]:
    text = "Operations on the store that servers share, by how they ended; absent without --store."
    yield counter("store_operations", text, {} if store is None else store.outcomes, "outcome")
    moved = {} if store is None else {"read": store.read_bytes, "written": store.written_bytes}
    yield counter("store_bytes", "Bytes of states that were read from and written to the store.", moved, "direction")
    yield counter("store_seconds", "Time that operations on the store took.", {} if store is None else store.seconds)
    text = "1 while the store is paused because operations on it have failed, else 0."
    yield gauge("store_circuit_open", text, {} if store is None else float(store.circuit_open))
    text = "Times that the store was paused."
    yield counter("store_circuit_openings", text, {} if store is None else store.circuit_openings)
    text = "Values in the store that could not be read and were treated as missing."
    yield counter("store_unreadable", text, {} if store is None else store.unreadable)


def _states(usage: StateUsage) -> Iterator[Metric]:
    by_retention = {"persistent": usage.persistent, "lease": usage.names - usage.persistent}
    yield gauge("named_states", "Named states, by how they are kept.", by_retention, "retention")
    yield gauge("state_leases", "Owners whose states stay until their lease ends.", usage.leases)
    yield gauge("named_state_bytes", "Bytes of named states; copies share theirs.", usage.num_bytes)
    yield gauge("named_state_capacity_bytes", "The most bytes of named states.", usage.capacity)
    text = "Changes of persistent states that could not be written to disk."
    yield counter("named_state_failed_writes", text, usage.failed_writes)


def _jobs(jobs: StoreReadings) -> Iterator[Metric]:
    yield gauge("job_files", "Files of jobs.", jobs.num_files)
    yield gauge(
        "job_file_bytes", "Bytes of the files of jobs, those that are being uploaded included.", jobs.file_bytes
    )
    database = {"used": jobs.database_bytes - jobs.unused_bytes, "unused": jobs.unused_bytes}
    yield gauge("job_database_bytes", "Bytes of the database of jobs; unused ones are used again.", database, "kind")
    yield gauge("job_events", "Events of fine-tuning jobs.", jobs.num_events)
    yield gauge("job_file_capacity_bytes", "The most bytes of the files of jobs.", jobs.file_capacity)
    yield gauge("batches", "Batches, by their status.", jobs.batches, "status")
    lines, usage = jobs.lines, jobs.lines.usage
    outcomes = {"completed": lines.completed, "failed": lines.failed - lines.not_run, "not_run": lines.not_run}
    text = "Lines of batches that are finished. Those that were not run had expired or were cancelled."
    yield counter("batch_lines", text, outcomes, "outcome")
    tokens = {"input": usage.input_tokens, "cached": usage.cached_tokens, "output": usage.output_tokens}
    text = "Tokens of the answers to lines of batches; cached ones are also input, and were not run."
    yield counter("batch_tokens", text, tokens, "kind")
    text = "Lines of batches that were sent again, because the engine had no room or did not serve."
    yield counter("batch_retries", text, lines.num_retries)
    yield counter("batch_stops", "Times that a fault of the server has stopped a batch for a while.", jobs.num_stops)
    yield gauge("tunings", "Fine-tuning jobs, by their status.", jobs.tunings, "status")
    yield counter("tuning_updates", "Updates of states by fine-tuning jobs, without those of searches.", jobs.updates)
    yield counter("tuning_tokens", "Tokens that these updates have run.", jobs.tokens)


_LLAMA_PREFIX = "llamacpp:"


def _llama_metrics(engines: Collection[EngineReadings]) -> Iterator[Metric]:
    """Yield llama-server's metrics. They add up all loaded models, since llama-server has one model."""
    every = [one.counters for one in engines]
    cached = sum(one.cached_tokens for one in every)
    prompt_tokens = sum(one.prompt_tokens.sum for one in every) - cached
    prompt_seconds = sum(one.first_token_seconds.sum - one.queue_seconds.sum for one in every)
    predicted = sum(one.generated_tokens for one in every)
    predicted_seconds = sum(one.inter_token_seconds.sum for one in every)
    steps = sum(one.steps for one in every)
    yield _llama_counter("prompt_tokens", "Tokens of prompts that were run.", prompt_tokens)
    yield _llama_counter("prompt_tokens_cached", "Tokens of prompts that were cached and not run.", cached)
    yield _llama_counter("prompt_seconds", "Time from getting a slot to the first token.", max(prompt_seconds, 0.0))
    yield _llama_counter("tokens_predicted", "Tokens that were generated.", predicted)
    yield _llama_counter("tokens_predicted_seconds", "Time between tokens of a sequence.", predicted_seconds)
    yield _llama_counter("n_decode", "Steps of the model that were run.", steps)
    yield _llama_gauge("prompt_tokens_seconds", "Tokens of prompts a second.", prompt_tokens, prompt_seconds)
    yield _llama_gauge("predicted_tokens_seconds", "Generated tokens a second.", predicted, predicted_seconds)
    active, queued = sum(one.stats.active for one in engines), sum(one.stats.queued for one in engines)
    yield _llama_gauge("requests_processing", "Requests that hold a slot.", active)
    yield _llama_gauge("requests_deferred", "Requests that wait for a slot.", queued)
    decoded = sum(one.decode_tokens for one in every)
    yield _llama_gauge(
        "n_busy_slots_per_decode", "The mean number of sequences that get a token in a step.", decoded, steps
    )


def _llama_counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_LLAMA_PREFIX + name, text, value=value)


def _llama_gauge(name: str, text: str, part: float, whole: float = 1.0) -> Metric:
    return GaugeMetricFamily(_LLAMA_PREFIX + name, text, value=part / whole if whole > 0 else 0.0)


# What the application carries for its handlers: the metrics.

METRICS = AppKey("metrics", Metrics)
