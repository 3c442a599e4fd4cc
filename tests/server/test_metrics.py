"""The metrics after requests of all kinds, and their descriptions in docs/metrics.md."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError
from prometheus_client.parser import text_string_to_metric_families

from rnn_engine.errors import OverloadedError
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.settings import AuthSettings, Limits, ServerSettings
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig, CacheStats
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine, encode
from tests.support.http import AT_ONCE, Client, Serve
from tests.support.toy_states import ROOT, ToyDevice, keep, toy_shape
from tools.metrics import BEGIN, DOCUMENT, families, full_name, renew

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(client: Client) -> Samples:
    response = await client.get("/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = text_string_to_metric_families(await response.text())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the value of a metric of the server, or of its only model."""
    of_model = frozenset({"model": "fake", **labels}.items())
    metric = f"rnn_engine_{name}"
    return samples[metric, of_model if (metric, of_model) in samples else frozenset(labels.items())]


async def complete(client: Client, **fields: object) -> int:
    response = await client.post("/v1/completions", json={"prompt": "Hi", **fields})
    await response.read()
    return response.status


async def test_tokens_and_outcomes(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda request: " Hello!", cached_tokens=1))
    assert await complete(client) == 200
    assert await complete(client, max_tokens=3, n=2, stream=True) == 200
    samples = await scrape(client)
    assert value(samples, "requests_total", outcome="stop") == 1
    assert value(samples, "requests_total", outcome="length") == 2
    assert value(samples, "prompt_tokens_total") == 6
    assert value(samples, "cached_prompt_tokens_total") == 3
    assert value(samples, "request_generated_tokens_sum") == 13
    assert value(samples, "request_prompt_tokens_bucket", le="1") == 0
    assert value(samples, "request_prompt_tokens_bucket", le="4") == 3
    assert value(samples, "request_seconds_bucket", le="+Inf") == value(samples, "request_seconds_count") == 3
    assert value(samples, "slots") == 2


async def test_what_is_kept_of_requests(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_conversations=1)))
    for path, body in (
        ("/v1/responses", {"input": "Hi", "instructions": "x" * 5000}),
        ("/v1/conversations", {}),
        ("/v1/conversations", {"items": [{"role": "user", "content": "x" * 10_000}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "id_slot": 0}),
    ):
        assert (await client.post(path, json=body)).status == 200
    samples = await scrape(client)
    kinds = ("conversations", "slot_prompts")
    assert [value(samples, "kept_values", kind=kind) for kind in kinds] == [2, 1]
    assert [value(samples, "kept_evictions_total", kind=kind) for kind in kinds] == [1, 0]
    conversations, prompts = (value(samples, "kept_bytes", kind=kind) for kind in kinds)
    assert 15_000 < conversations < 20_000
    assert prompts == 4 * len(encode("User: Hi\n\nAssistant:"))


@AT_ONCE
async def test_llama_servers_metrics(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda request: " Hello!", cached_tokens=1)
    client = await serve(engine)
    assert await complete(client) == 200
    engine.active = 1
    samples = await scrape(client)
    told = {
        name: samples[f"llamacpp:{name}", frozenset()]
        for name in ("prompt_tokens_total", "prompt_tokens_cached_total", "n_decode_total")
    }
    assert told == {"prompt_tokens_total": 1, "prompt_tokens_cached_total": 1, "n_decode_total": 0}
    assert samples["llamacpp:requests_processing", frozenset()] == 1
    assert samples["llamacpp:predicted_tokens_seconds", frozenset()] >= 0
    started = (await client.get("/metrics")).headers["Process-Start-Time-Unix"]
    assert 0 < int(started) <= time.time()


async def test_a_scrape_reads_the_counts_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client, counts = await serve(engine := FakeEngine()), engine.cache_stats
    num_reads = 0

    def count() -> CacheStats | None:
        nonlocal num_reads
        num_reads += 1
        return counts()

    monkeypatch.setattr(engine, "cache_stats", count)
    samples = await scrape(client)
    assert ("llamacpp:n_decode_total", frozenset()) in samples
    assert value(samples, "slots") == 2
    assert num_reads == 1


async def test_the_engine_is_described(serve: Serve) -> None:
    samples = await scrape(await serve(FakeEngine()))
    [labels] = [dict(labels) for name, labels in samples if name == "rnn_engine_info"]
    assert {name: labels[name] for name in ("model", "device", "weights")} == {
        "model": "fake",
        "device": "none",
        "weights": "f32",
    }
    assert labels["version"]


async def test_requests_are_counted_by_the_routes_template(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for path in ("/v1/states/pirate", "/api/oai/v1/models", "/v1/models", "/secret/path"):
        await client.get(path)
    await client.request("PURGE", "/v1/models")
    samples = await scrape(client)
    counted = {tuple(sorted(labels)): count for (name, labels), count in samples.items() if "http_requests_t" in name}
    assert {tuple(text for _, text in labels): count for labels, count in counted.items()} == {
        ("GET", "/v1/states/{name}", "404"): 1,
        ("GET", "/v1/models", "200"): 2,
        ("GET", "unmatched", "404"): 1,
        ("other", "unmatched", "405"): 1,
    }
    assert value(samples, "http_request_duration_seconds_count", route="/v1/models") == 2
    assert value(samples, "http_requests_in_progress") == 1  # this one
    assert "secret" not in str(samples)


@pytest.mark.parametrize(
    ("faults", "cause"),
    [
        ({"fail_at": 2}, "failed_step"),
        ({"refuse": OverloadedError("no room", retry_after=1.0)}, "overloaded"),
        ({"vanish_at": 2}, "error"),
    ],
    ids=["a failed step", "a full queue", "an end without notice"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_answers_that_are_cut_short(serve: Serve, faults: dict[str, Any], cause: str, stream: bool) -> None:
    client = await serve(FakeEngine(**faults))
    await complete(client, stream=stream)
    assert value(await scrape(client), "http_requests_aborted_total", cause=cause) == 1


async def test_a_client_that_leaves(serve: Serve) -> None:
    engine = FakeEngine(hold=2)
    client = await serve(engine)
    asking = asyncio.create_task(complete(client))
    await engine.held.wait()
    assert value(await scrape(client), "slots_in_use") == 1
    asking.cancel()
    await engine.left.wait()
    await asyncio.gather(asking, return_exceptions=True)
    samples = await scrape(client)
    assert value(samples, "http_requests_aborted_total", cause="client_left") == 1
    assert value(samples, "requests_total", outcome="abandoned") == 1
    assert value(samples, "slots_in_use") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_the_server_ends_for_it_took_too_long(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    client = await serve(FakeEngine(hold=2), ServerSettings(limits=Limits(max_request_seconds=0)))
    with monkeypatch.context() as patch:
        patch.setattr("rnn_engine_server.core.performing._SPARE_SECONDS", 0.2)
        with suppress(ClientError):
            await complete(client, stream=stream)
    assert value(await scrape(client), "http_requests_aborted_total", cause="timeout") == 1


async def test_a_request_that_is_wrong_is_no_abort(serve: Serve) -> None:
    client = await serve(FakeEngine())
    assert await complete(client, top_p=7) == 400
    samples = await scrape(client)
    assert not any(count for (name, _), count in samples.items() if name == "rnn_engine_http_requests_aborted_total")


async def test_the_cache_by_tier_and_reason(serve: Serve) -> None:
    shape = toy_shape(vocab=VOCAB_SIZE)
    device = ToyDevice(shape, num_slabs=1)
    cache = make_cache(shape, "model", device, CacheConfig(host_capacity=1 << 20), device)
    keep(cache, device, encode("Be brief. "))
    cache.release(cache.look_up(ROOT, encode("Be brief. Hi")))
    cache.look_up(ROOT, encode("unknown"))
    samples = await scrape(await serve(FakeEngine(cache=cache)))
    assert value(samples, "cache_entries", tier="device") == 1
    assert value(samples, "cache_capacity_bytes", tier="host") == 1 << 20
    assert value(samples, "cache_hits_total", tier="device") == 1
    assert value(samples, "cache_misses_total", reason="unknown_prompt") == 1
    assert (value(samples, "cache_looked_up_tokens_total"), value(samples, "cache_saved_tokens_total")) == (19, 10)


async def test_named_states_and_leases(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for name in ("a", "b"):
        body = {"name": name, "owner": "Ann", "prompt": "Hi"}
        response = await client.post("/v1/states", json=body)
        assert response.status == 200, await response.text()
    samples = await scrape(client)
    assert value(samples, "named_states", retention="lease") == 2
    assert value(samples, "state_leases") == 1
    assert 0 < value(samples, "named_state_bytes") < value(samples, "named_state_capacity_bytes")


async def test_free_bytes_of_the_folders_that_are_written_to(serve: Serve, tmp_path: Path) -> None:
    client = await serve(FakeEngine(folders={"cache": tmp_path, "states": tmp_path / "gone"}))
    samples = await scrape(client)
    assert value(samples, "disk_free_bytes", folder="cache") > 0
    assert ("rnn_engine_disk_free_bytes", frozenset({("folder", "states")})) not in samples


async def test_any_key_may_read_them_and_nobody_without_one(serve: Serve) -> None:
    keys = (ApiKey.of("watcher's", "watcher", Scope.USE),)
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings(keys=keys)))
    assert (await client.get("/metrics")).status == 401
    assert (await client.get("/metrics", headers={"Authorization": "Bearer watcher's"})).status == 200


async def test_two_servers_count_apart(serve: Serve) -> None:
    first, second = await serve(FakeEngine()), await serve(FakeEngine())
    await complete(first)
    assert value(await scrape(second), "prompt_tokens_total") == 0


async def test_every_documented_metric_is_there_and_no_other(serve: Serve) -> None:
    cache = make_cache(shape := toy_shape(vocab=VOCAB_SIZE), "model", ToyDevice(shape))
    engine = FakeEngine(cache=cache, refuse=OverloadedError("no room", retry_after=1.0))
    client = await serve(engine)
    await complete(client)
    text = await (await client.get("/metrics")).text()
    served = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE rnn_engine_")}
    assert served == {full_name(family) for family in families()}


def test_the_document_is_up_to_date() -> None:
    text = DOCUMENT.read_text()
    assert BEGIN in text
    assert renew(text) == text, "run: python -m tools.metrics"


def test_every_metric_has_a_name_of_its_own_and_a_text() -> None:
    names = [full_name(family) for family in families()]
    assert len(set(names)) == len(names)
    assert all(name.startswith("rnn_engine_") for name in names)
    assert all(family.documentation.endswith(".") for family in families())
