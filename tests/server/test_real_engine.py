"""The server over the real engine, on the CPU, with a small random model that works on token ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from rnn_engine.cli.session import EngineChoice
from rnn_engine.convert.convert import convert_model
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.apis.engine.cache import Cache
from rnn_engine_server.apis.openai.schemas import Completion
from rnn_engine_states.cache.config import CacheConfig
from tests.support.gguf import save_gguf
from tests.support.http import Body, Client, Load, check_shape, client_over, engine_in, error_of, post, post_stream
from tests.support.models import random_model, tiny_shape

PATH = "/v1/completions"


@pytest.fixture
async def client(load: Load, tiny_model: Path) -> AsyncIterator[Client]:
    engine = await load(EngineChoice(tiny_model, LoadSettings("cpu", "none"), 3, CacheConfig()))
    async with client_over(engine) as client:
        yield client


def body(number: int, **fields: object) -> Body:
    return {
        "prompt": [number, 7, 9],
        "seed": number,
        "max_tokens": 12,
        "return_token_ids": True,
        "logprobs": 1,
        **fields,
    }


async def cache_totals(client: Client) -> Body:
    totals: Body = (await (await client.get("/v1/cache")).json())["totals"]
    return totals


async def test_answers_are_the_same_alone_together_and_as_streams(client: Client) -> None:
    alone = [(await post(client, PATH, Completion, body(number)))["choices"][0] for number in range(1, 9)]
    together = await asyncio.gather(*(post(client, PATH, Completion, body(number)) for number in range(1, 9)))
    streams = await asyncio.gather(*(post_stream(client, PATH, Completion, body(number)) for number in range(1, 9)))
    for single, joint, chunks in zip(alone, together, streams, strict=True):
        [choice] = joint["choices"]
        assert choice["token_ids"] == single["token_ids"]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(single["logprobs"]["token_logprobs"], abs=1e-4)
        streamed = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
        assert streamed == single["token_ids"]
    assert len({tuple(choice["token_ids"]) for choice in alone}) == 8


async def test_scores_of_a_prompt_are_those_of_its_generation(client: Client) -> None:
    drawn = (await post(client, PATH, Completion, body(1, logit_bias={"0": -1000})))["choices"][0]
    tokens = [*drawn["prompt_token_ids"], *drawn["token_ids"]]
    scored = (await post(client, PATH, Completion, {"prompt": tokens, "echo": True, "logprobs": 1, "max_tokens": 0}))[
        "choices"
    ][0]
    assert scored["logprobs"]["tokens"] == [f"token_id:{token}" for token in tokens]
    assert scored["logprobs"]["token_logprobs"][0] is None
    generated = drawn["logprobs"]["token_logprobs"]
    assert scored["logprobs"]["token_logprobs"][3:] == pytest.approx(generated, abs=1e-4)


async def test_copies_draw_differently_and_again_the_same(client: Client) -> None:
    copies = (await post(client, PATH, Completion, body(1, n=4, temperature=1.5, top_p=1)))["choices"]
    again = (await post(client, PATH, Completion, body(1, n=4, temperature=1.5, top_p=1)))["choices"]
    assert [choice["token_ids"] for choice in copies] == [choice["token_ids"] for choice in again]
    assert len({tuple(choice["token_ids"]) for choice in copies}) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_gives_its_slots_back(client: Client, stream: bool) -> None:
    endless = body(1, max_tokens=2**30 if stream else 2**16, stream=stream, logit_bias={"0": -1000}, n=2)
    call = asyncio.create_task(client.post(PATH, json=endless))
    engine = engine_in(client)
    while engine.stats().active < 2:
        await asyncio.sleep(0.001)
    if stream:
        (await call).close()
    else:
        call.cancel()
    while engine.stats().active or engine.stats().queued:
        await asyncio.sleep(0.001)
    await post(client, PATH, Completion, body(2))


async def test_text_for_a_model_without_tokenizer_is_refused(client: Client) -> None:
    error = await error_of(await client.post(PATH, json={"prompt": "text"}), 400)
    assert "token" in error["message"]
    await error_of(await client.post("/tokenize", json={"content": "text"}), 400)


async def test_token_beyond_the_vocabulary_is_refused(client: Client) -> None:
    error = await error_of(await client.post(PATH, json={"prompt": [1, 96], "echo": True}), 400)
    assert "96" in error["message"]


async def test_token_that_ends_a_text_is_scored_too(client: Client) -> None:
    ended = body(1, logit_bias={"0": 1000}, echo=True)
    [choice] = (await post(client, PATH, Completion, ended))["choices"]
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("", "stop", [])
    drawn = {**ended, "prompt": [*choice["prompt_token_ids"], 0], "max_tokens": 0}
    [scored] = (await post(client, PATH, Completion, drawn))["choices"]
    assert choice["logprobs"]["tokens"][-1] == "token_id:0"
    assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(scored["logprobs"]["token_logprobs"][1:], abs=1e-4)


@pytest.mark.over_one_engine("each replica that draws some of the copies runs the prompt")
async def test_best_of_draws_copies_from_one_run_of_the_prompt(client: Client) -> None:
    fields = {"prompt": [7] * 40, "temperature": 1.5, "top_p": 1, "max_tokens": 5}
    before = await cache_totals(client)
    best = (await post(client, PATH, Completion, body(1, n=2, best_of=5, **fields)))["choices"]
    after = await cache_totals(client)
    assert [after[name] - before[name] for name in ("look_ups", "exact_hits", "tokens_saved")] == [5, 4, 160]
    every = (await post(client, PATH, Completion, body(1, n=5, **fields)))["choices"]
    means = {tuple(choice["token_ids"]): fmean(choice["logprobs"]["token_logprobs"]) for choice in every}
    assert len(means) == 5
    assert [tuple(choice["token_ids"]) for choice in best] == sorted(means, key=lambda ids: -means[ids])[:2]


async def test_what_is_kept_is_seen_and_can_be_dropped(client: Client) -> None:
    prompt = list(range(1, 50))
    before = await cache_totals(client)
    for cached in (0, 49):
        answer = await post(client, PATH, Completion, body(0, prompt=prompt))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    shown = await (await client.get("/v1/cache")).json()
    check_shape(Cache, shown)
    counted = [shown["totals"][name] - before[name] for name in ("hits", "exact_hits", "tokens_saved")]
    assert counted == [1, 1, 49]
    [first, *_] = shown["nodes"]
    assert (first["length"], first["whole"], first["hits"]) == (49, False, 1)
    assert list(first["bytes"]) == ["device"]
    await client.delete("/v1/cache")
    answer = await post(client, PATH, Completion, body(0, prompt=prompt))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("path", [PATH, "/completion"])
async def test_times_of_an_answer_are_told_whole_and_streamed(client: Client, path: str) -> None:
    whole = await (
        await client.post(path, json=body(40, max_tokens=4, logprobs=None, return_token_ids=False, ignore_eos=True))
    ).json()
    response = await client.post(
        path, json=body(41, max_tokens=4, logprobs=None, return_token_ids=False, ignore_eos=True, stream=True)
    )
    frames = [frame for frame in (await response.text()).split("\n\n") if '"timings"' in frame]
    for timings in (whole["timings"], json.loads(frames[-1].removeprefix("data: "))["timings"]):
        assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (3, 0, 4)
        assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 3)
        assert min(timings["prompt_ms"], timings["predicted_ms"], timings["predicted_per_second"]) > 0


@pytest.mark.parametrize("path", [PATH, "/completion"])
async def test_a_stream_tells_how_far_the_prompt_has_come(client: Client, path: str) -> None:
    prompt = [number % 90 + 1 for number in range(600)]
    told = []
    for _ in range(2):
        response = await client.post(
            path, json={"prompt": prompt, "max_tokens": 2, "stream": True, "return_progress": True}
        )
        frames = (await response.text()).split("\n\n")
        events = [json.loads(frame.removeprefix("data: ")) for frame in frames if frame.startswith("data: {")]
        told.append([event["prompt_progress"] for event in events if "prompt_progress" in event])
        assert "prompt_progress" in events[0]
    first, again = told
    assert {(one["total"], one["cache"]) for one in first} == {(600, 0)}
    processed = [one["processed"] for one in first]
    assert processed == sorted(set(processed))
    assert (processed[0], processed[-1], len(processed) > 2) == (0, 600, True)
    assert [(one["cache"], one["processed"]) for one in again] == [(600, 600)]
    assert all(one["time_ms"] >= 0 for one in first)


@pytest.mark.parametrize("path", [PATH, "/completion"])
async def test_each_event_tells_times_where_that_is_asked_for(client: Client, path: str) -> None:
    wanted = {"stream": True, "return_progress": True, "timings_per_token": True, "return_token_ids": True}
    prompt = [number % 90 + 1 for number in range(600)]
    response = await client.post(path, json={"prompt": prompt, "max_tokens": 3, "ignore_eos": True, **wanted})
    frames = (await response.text()).split("\n\n")
    events = [json.loads(frame.removeprefix("data: ")) for frame in frames if frame.startswith("data: {")]
    times = [event["timings"] for event in events if "timings" in event]
    assert (times[0]["prompt_n"], times[0]["prompt_ms"], times[0]["predicted_n"]) == (0, 0.0, 0)
    for earlier, later in pairwise(times):
        assert all(later[name] >= earlier[name] for name in ("prompt_n", "predicted_n", "predicted_ms"))
    assert sum("prompt_progress" in event for event in events) == sum(one["predicted_n"] == 0 for one in times)
    assert {one["prompt_n"] for one in times if one["predicted_n"] > 0} == {600}
    assert [one["predicted_n"] for one in times[-2:]] == [3, 3]


async def test_a_model_tells_the_types_of_its_blocks(load: Load, tmp_path: Path) -> None:
    wide = random_model(tiny_shape(layers=1, width=256, head_size=64, ffn=512, vocab=96), seed=6)
    with open_model(save_gguf(wide, tmp_path / "wide.gguf")) as opened:
        convert_model(opened, tmp_path / "model.gguf", "q4_k_m")
    engine = await load(EngineChoice(tmp_path / "model.gguf", LoadSettings("cpu"), 1, CacheConfig()))
    async with client_over(engine) as client:
        [entry] = (await (await client.get("/v1/models")).json())["data"]
        assert entry["meta"]["blocks"] == {"Q4_K": 7, "Q6_K": 1}
        shown = await (await client.post("/api/show", json={"model": entry["id"]})).json()
        assert shown["details"]["quantization_level"] == "Q4_K"
