"""KoboldCpp's routes, with the bodies that KoboldAI Lite and SillyTavern send."""

from __future__ import annotations

import asyncio
import json

import pytest

from rnn_engine.errors import OverloadedError
from rnn_engine_server.apis.koboldcpp import (
    KoboldAbort,
    KoboldAnswer,
    KoboldError,
    KoboldEvent,
    KoboldLastLogprobs,
    KoboldLogprobs,
    KoboldNumber,
    KoboldPart,
    KoboldPerf,
    KoboldResult,
    KoboldTokens,
    KoboldVersion,
)
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.settings import AuthSettings, Limits, ServerSettings
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import PIECES, Body, Client, Serve, check_shape, post

GENERATE, STREAM, ABORT = "/api/v1/generate", "/api/extra/generate/stream", "/api/extra/abort"
CHECK = "/api/extra/generate/check"

LITE: Body = {
    "n": 1,
    "max_context_length": 4096,
    "max_length": 20,
    "rep_pen": 1.07,
    "temperature": 0.75,
    "top_p": 0.92,
    "top_k": 100,
    "top_a": 0,
    "typical": 1,
    "tfs": 1,
    "rep_pen_range": 360,
    "rep_pen_slope": 0.7,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "memory": "Once. ",
    "trim_stop": True,
    "genkey": "KCPP7881",
    "min_p": 0,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "smoothing_factor": 0,
    "nsigma": 0,
    "banned_tokens": [],
    "render_special": False,
    "logprobs": False,
    "presence_penalty": 0,
    "logit_bias": {},
    "prompt": "Then",
    "quiet": True,
    "stop_sequence": ["\nUser:", ""],
    "use_default_badwordsids": False,
    "bypass_eos": False,
}
SILLY: Body = {
    "prompt": "a",
    "use_story": False,
    "use_memory": False,
    "use_authors_note": False,
    "use_world_info": False,
    "max_context_length": 2048,
    "max_length": 20,
    "rep_pen": 1,
    "rep_pen_range": 0,
    "rep_pen_slope": 0.9,
    "temperature": 1,
    "tfs": 1,
    "top_a": 1,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "typical": 1,
    "sampler_order": [0, 1, 2, 3, 4, 5, 6],
    "singleline": True,
    "use_default_badwordsids": False,
    "mirostat": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5.0,
    "grammar": "",
    "sampler_seed": -1,
}


async def stream(client: Client, body: Body) -> list[Body]:
    response = await client.post(STREAM, json=body)
    assert (response.status, response.content_type) == (200, "text/event-stream"), await response.text()
    frames = (await response.text()).split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("event: message\ndata: ") for frame in frames)
    events = [json.loads(frame.partition("data: ")[2]) for frame in frames]
    for event in events:
        check_shape(KoboldEvent, event)
    return events


async def test_what_koboldai_lite_sends(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: " we met.\nUser: b")
    client = await serve(engine)
    response = await client.post(GENERATE, json=LITE)
    answer = await response.json()
    check_shape(KoboldAnswer, answer)
    [result] = answer["results"]
    assert (result["text"], result["finish_reason"]) == (" we met.", "stop")
    assert result["prompt_tokens"] == len("Once. Then")
    assert response.headers["X-Left-Out"] == "rep_pen_slope"
    [request] = engine.requests
    assert list(request.prompt) == encode("Once. Then")
    assert (request.max_tokens, request.stop) == (20, (b"\nUser:",))
    sampling = request.sampling
    assert (sampling.repeat_penalty, sampling.repeat_last_n, sampling.top_k) == (1.07, 360, 100)
    assert sampling.samplers == (
        "penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "temperature", "top_n_sigma", "xtc"
    )  # fmt: skip


async def test_what_sillytavern_sends(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: "Hi\nthere")
    client = await serve(engine)
    response = await client.post(GENERATE, json=SILLY)
    [result] = (await response.json())["results"]
    assert result["text"] == "Hi"  # one line
    assert response.headers["X-Left-Out"] == "rep_pen_slope, top_a"
    assert engine.requests[0].sampling.repeat_last_n == -1


async def test_stop_strings_and_bans(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: "Hello")
    body: Body = {
        "prompt": "a",
        "stop_sequence": ["lo"],
        "trim_stop": False,
        "custom_token_bans": "5, 6",
        "logit_bias": {"7": 1},
        "ban_eos_token": True,
        "use_default_badwordsids": False,
        "banned_tokens": ["xy"],
        "dry_sequence_breakers": '["a"]',
        "dry_multiplier": 0.5,
        "rep_pen": 1.1,
    }
    client = await serve(engine)
    answer = await post(client, GENERATE, KoboldAnswer, body)
    assert answer["results"][0]["text"] == "Hello"
    sampling = engine.requests[0].sampling
    assert {token: value for token, value in sampling.logit_bias.items() if token} == {
        5: -float("inf"),
        6: -float("inf"),
        7: 1.0,
    }
    assert sampling.logit_bias[0] == -float("inf")
    assert (list(sampling.dry_sequence_breakers), sampling.repeat_last_n) == (["a"], 320)
    assert len(sampling.bad_words) == 1


@PIECES
async def test_a_stream(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "Hello"))
    events = await stream(client, {"prompt": "a", "max_length": 3})
    assert [event["token"] for event in events] == ["H", "e", "l", ""]
    assert [event["finish_reason"] for event in events] == [None, None, None, "length"]
    events = await stream(client, {"prompt": "a", "stop_sequence": ["lo"], "trim_stop": False})
    assert ("".join(event["token"] for event in events), events[-1]["finish_reason"]) == ("Hello", "stop")


@PIECES
@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize("genkey", ["KCPP1", ""])
async def test_a_running_generation_is_read_and_aborted(serve: Serve, path: str, genkey: str) -> None:
    engine = FakeEngine(reply=lambda _: "Hello", hold=3)
    client = await serve(engine)
    asked = asyncio.create_task(client.post(path, json={"prompt": "a", **({"genkey": genkey} if genkey else {})}))
    await engine.held.wait()
    assert await post(client, CHECK, KoboldPart, {"genkey": genkey}) == {"results": [{"text": "Hel"}]}
    assert await post(client, CHECK, KoboldPart, {"genkey": "other"}) == {"results": [{"text": ""}]}
    told = await (await client.get(CHECK)).json()
    assert told == {"results": [{"text": "" if genkey else "Hel"}]}
    nothing: Body = {"success": "false", "done": "false"}
    assert await post(client, ABORT, KoboldAbort, {"genkey": "other"}) == nothing
    response = await client.post(ABORT, json={"genkey": genkey}) if genkey else await client.post(ABORT)
    assert await response.json() == {"success": "true", "done": "true"}
    text = await (await asked).text()
    if path == GENERATE:
        [result] = json.loads(text)["results"]
        assert (result["text"], result["finish_reason"], result["completion_tokens"]) == ("Hel", "stop", 3)
    else:
        assert text.endswith('data: {"token":"","finish_reason":"stop"}\n\n')
    assert engine.active == 0
    assert await post(client, ABORT, KoboldAbort, {"genkey": genkey}) == nothing


async def test_facts(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_prompt_tokens=50, max_answer_tokens=60)))
    facts: list[tuple[str, type[object], Body]] = [
        ("/api/v1/model", KoboldResult, {"result": "fake"}),
        ("/api/latest/model", KoboldResult, {"result": "fake"}),
        ("/api/v1/info/version", KoboldResult, {"result": "1.2.5"}),
        ("/api/v1/config/max_length", KoboldNumber, {"value": 60}),
        ("/api/v1/config/max_context_length", KoboldNumber, {"value": 50}),
        ("/api/extra/true_max_context_length", KoboldNumber, {"value": 50}),
    ]
    for path, kind, expected in facts:
        answer = await (await client.get(path)).json()
        check_shape(kind, answer)
        assert answer == expected
    version = await (await client.get("/api/extra/version")).json()
    check_shape(KoboldVersion, version)
    assert (version["result"], version["protected"]) == ("KoboldCpp", False)
    assert await post(client, "/api/extra/tokencount", KoboldTokens, {"prompt": "hé", "special": True}) == {
        "value": 3,
        "ids": encode("hé"),
    }


async def test_times_are_those_of_the_last_request(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "Hello"))
    perf = await (await client.get("/api/extra/perf")).json()
    check_shape(KoboldPerf, perf)
    assert (perf["last_token_count"], perf["total_gens"], perf["idle"]) == (0, 0, 1)
    await post(client, GENERATE, KoboldAnswer, {"prompt": "a"})
    perf = await (await client.get("/api/extra/perf")).json()
    assert (perf["last_token_count"], perf["last_process"], perf["total_gens"]) == (5, 0.5, 1)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": ["a", "b"]}, "one prompt"),
        ({"prompt": "a", "max_length": "a"}, "max_length"),
        ({"prompt": "a", "logprobs": "yes"}, "logprobs"),
        ({"prompt": "a", "banned_strings": "x"}, "banned_strings"),
        ({"prompt": "a", "memory": 3}, "memory"),
        ({"prompt": [1], "memory": "b"}, "memory"),
        ({"prompt": "a", "sampler_order": [7]}, "sampler_order"),
        ({"prompt": "a", "sampler_order": [1, 1]}, "sampler_order"),
        ({"prompt": "a", "custom_token_bans": 3}, "custom_token_bans"),
        ({"prompt": "a", "images": ["aGk="]}, "images"),
    ],
)
async def test_refusals_are_in_koboldcpps_form(serve: Serve, body: Body, told: str) -> None:
    response = await (await serve(FakeEngine())).post(GENERATE, json=body)
    error = await response.json()
    check_shape(KoboldError, error)
    assert (response.status, error["detail"]["type"]) == (400, "bad_input")
    assert told in error["detail"]["msg"]


async def test_a_full_queue_is_a_busy_server(serve: Serve) -> None:
    engine = FakeEngine(refuse=OverloadedError("the queue is full", 1.0))
    response = await (await serve(engine)).post(GENERATE, json={"prompt": "a"})
    assert response.status == 429
    assert (await response.json())["detail"]["type"] == "service_unavailable"


async def test_a_stream_that_fails(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "Hello", fail_at=2))
    text = await (await client.post(STREAM, json={"prompt": "a"})).text()
    frame = text.split("\n\n")[-2]
    assert frame.startswith("event: error\ndata: ")
    check_shape(KoboldError, json.loads(frame.partition("data: ")[2]))


async def test_both_kinds_of_bans_apply(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    body = {"prompt": "a", "banned_tokens": ["a", ""], "banned_strings": ["b c", None], "bad_words": ["d"]}
    await post(client, GENERATE, KoboldAnswer, body)
    words = {tuple(word) for word in engine.requests[0].sampling.bad_words}
    assert words >= {tuple(encode(word)) for word in ("a", "b c", "d")}


LAST = "/api/extra/last_logprobs"


async def test_log_probabilities_of_an_answer_and_of_the_last_one(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "Hé"))
    assert await post(client, LAST, KoboldLastLogprobs, {}) == {"logprobs": None}
    answer = await post(client, GENERATE, KoboldAnswer, {"prompt": "a", "logprobs": True, "genkey": "k"})
    found = answer["results"][0]["logprobs"]
    assert [len(found[name]) for name in KoboldLogprobs.__annotations__] == [3] * 5
    assert [(each["logprob"], len(each["top_logprobs"])) for each in found["content"]] == [
        (-0.73, 5),
        (-1.96, 5),
        (-1.7, 5),
    ]
    assert bytes(byte for each in found["content"] for byte in each["bytes"]).decode() == "Hé"
    for key, expected in (("k", found), ("", found), ("other", None)):
        assert await post(client, LAST, KoboldLastLogprobs, {"genkey": key}) == {"logprobs": expected}
    streamed = await client.post("/api/extra/generate/stream", json={"prompt": "a", "logprobs": True, "genkey": "s"})
    assert "event: message" in await streamed.text()
    assert await post(client, LAST, KoboldLastLogprobs, {"genkey": "s"}) == {"logprobs": found}
    await post(client, GENERATE, KoboldAnswer, {"prompt": "a"})
    assert await (await client.get(LAST)).json() == {"logprobs": None}
    assert await post(client, LAST, KoboldLastLogprobs, {"genkey": "k"}) == {"logprobs": found}


async def test_log_probabilities_are_seen_by_their_client_only(serve: Serve) -> None:
    keys = (ApiKey.of("aa", "ann", Scope.USE), ApiKey.of("bb", "bob", Scope.USE))
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings(keys=keys)))
    ann, bob = ({"Authorization": f"Bearer {key}"} for key in ("aa", "bb"))
    made = await client.post(GENERATE, json={"prompt": "a", "logprobs": True}, headers=ann)
    assert made.status == 200, await made.text()
    seen = [(await (await client.get(LAST, headers=each)).json())["logprobs"] is not None for each in (ann, bob)]
    assert seen == [True, False]
