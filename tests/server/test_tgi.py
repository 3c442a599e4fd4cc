"""text-generation-inference's routes."""

from __future__ import annotations

import pytest

from rnn_engine.errors import OverloadedError
from rnn_engine_server.apis.tgi import TgiAnswer, TgiError, TgiEvent, TgiInfo
from rnn_engine_server.core.settings import Limits, ServerSettings
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import Body, Client, Serve, check_shape, parse_event, post


async def stream(client: Client, body: Body) -> list[Body]:
    response = await client.post("/generate_stream", json=body)
    assert response.status == 200, await response.text()
    return [parse_event(frame) for frame in (await response.text()).split("\n\n")[:-1]]


async def test_text_alone(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: "Hi")
    assert await post(await serve(engine), "/generate", TgiAnswer, {"inputs": "a"}) == {"generated_text": "Hi"}
    [request] = engine.requests
    assert (request.max_tokens, request.sampling.temperature, request.logprobs) == (100, 0.0, None)


async def test_at_the_root_an_answer_is_in_a_list_unless_it_is_a_stream(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "Hi"))
    response = await client.post("/", json={"inputs": "a"})
    assert await response.json() == [{"generated_text": "Hi"}]
    events = (await (await client.post("/", json={"inputs": "a", "stream": True})).text()).split("\n\n")[:-1]
    assert parse_event(events[-1])["generated_text"] == "Hi"


async def test_a_field_that_draws_makes_all_tokens_possible(serve: Serve) -> None:
    engine = FakeEngine()
    body: Body = {"inputs": "a", "parameters": {"do_sample": True, "max_new_tokens": 5, "stop": ["x"], "top_p": 0.9}}
    await post(await serve(engine), "/generate", TgiAnswer, body)
    [request] = engine.requests
    sampling = request.sampling
    assert (request.max_tokens, request.stop) == (5, (b"x",))
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 0, 0.9)


async def test_details(serve: Serve) -> None:
    body: Body = {
        "inputs": "ab",
        "parameters": {"details": True, "decoder_input_details": True, "top_n_tokens": 1, "seed": 5},
    }
    answer = await post(await serve(FakeEngine(reply=lambda _: "H")), "/generate", TgiAnswer, body)
    details = answer["details"]
    assert [(token["id"], token["logprob"]) for token in details["prefill"]] == [(98, None), (99, -0.99)]
    assert [(token["text"], token["special"]) for token in details["tokens"]] == [("H", False), ("", True)]
    assert [[token["id"] for token in tops] for tops in details["top_tokens"]] == [[1], [1]]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("eos_token", 1, 5)


async def test_the_best_of_several_comes_first_and_the_others_are_told(serve: Serve) -> None:
    """The fake engine gives greater bytes lower log-probabilities."""
    engine = FakeEngine(reply=lambda request: "cab"[len(engine.requests) - 1])
    body: Body = {"inputs": "a", "parameters": {"best_of": 3, "details": True, "do_sample": True}}
    answer = await post(await serve(engine), "/generate", TgiAnswer, body)
    assert answer["generated_text"] == "a"
    assert [one["generated_text"] for one in answer["details"]["best_of_sequences"]] == ["b", "c"]


async def test_a_stop_string_is_part_of_the_text(serve: Serve) -> None:
    body: Body = {"inputs": "a", "parameters": {"stop": ["lo"], "details": True, "return_full_text": True}}
    answer = await post(await serve(FakeEngine(reply=lambda _: "Hello")), "/generate", TgiAnswer, body)
    assert (answer["generated_text"], answer["details"]["finish_reason"]) == ("aHello", "stop_sequence")


@pytest.mark.parametrize("inputs", ["abcdefgh", encode("abcdefgh")], ids=["text", "token ids"])
async def test_truncated_prompt(serve: Serve, inputs: object) -> None:
    engine = FakeEngine(reply=lambda _: "!")
    client = await serve(engine, ServerSettings(limits=Limits(max_prompt_tokens=4)))
    fields: Body = {"truncate": 3, "marks": [1, 5, 7], "return_full_text": True}
    answer = await post(client, "/generate", TgiAnswer, {"inputs": inputs, "parameters": fields})
    assert answer["generated_text"] == "abcdefgh!"
    [request] = engine.requests
    assert list(request.prompt) == encode("fgh")
    assert list(request.checkpoint_positions) == [0, 2]
    for refused in ({"truncate": 5}, {}, {"truncate": 3, "marks": [9]}):
        assert (await client.post("/generate", json={"inputs": inputs, **refused})).status == 422


async def test_token_ids_that_are_cut_off_are_checked(serve: Serve) -> None:
    client = await serve(FakeEngine())
    response = await client.post("/generate", json={"inputs": [1, 999, 2], "truncate": 1, "return_full_text": True})
    assert (response.status, "prompt token 1" in (await response.json())["error"]) == (422, True)


async def test_the_prompts_of_a_mix_are_truncated(serve: Serve) -> None:
    engine = FakeEngine(num_slots=3)
    client = await serve(engine)
    state = [{"name": "none", "weight": 2}, {"weight": -0.5, "prompt": "wxyz"}, {"weight": -0.5}]
    await post(client, "/generate", TgiAnswer, {"inputs": "abcd", "parameters": {"truncate": 2, "state": state}})
    mix = engine.requests[0].mix
    assert mix is not None
    assert list(engine.requests[0].prompt) == encode("cd")
    assert [list(other.prompt or ()) for other in mix.others] == [encode("yz"), encode("cd")]


@pytest.mark.parametrize(("limit", "reason", "texts"), [(2, "length", ["H", "e"]), (9, "eos_token", [*"Hello", ""])])
async def test_a_stream_has_an_event_a_token(serve: Serve, limit: int, reason: str, texts: list[str]) -> None:
    client = await serve(FakeEngine(reply=lambda _: "Hello"))
    events = await stream(client, {"inputs": "a", "parameters": {"max_new_tokens": limit}})
    for event in events:
        check_shape(TgiEvent, event)
    assert [event["token"]["text"] for event in events] == texts
    assert [event["index"] for event in events] == list(range(1, len(texts) + 1))
    assert [event["generated_text"] for event in events[:-1]] == [None] * (len(texts) - 1)
    assert (events[-1]["generated_text"], events[-1]["details"]["finish_reason"]) == ("".join(texts), reason)


FLAGS = "a\u00e9\U0001f469\u200d\U0001f680!\U0001f1e8\U0001f1ed"  # characters of one to four tokens


@pytest.mark.parametrize("limit", [50, 2, 4])
async def test_the_texts_of_tokens_are_together_the_generated_text(serve: Serve, limit: int) -> None:
    client = await serve(FakeEngine(reply=lambda _: FLAGS))
    most = {"max_new_tokens": limit, "details": True, "decoder_input_details": True, "top_n_tokens": 2}
    answer = await post(client, "/generate", TgiAnswer, {"inputs": FLAGS, "parameters": most})
    details = answer["details"]
    assert "".join(token["text"] for token in details["prefill"]) == FLAGS
    told = [token["text"] for token in details["tokens"] if not token["special"]]
    del most["decoder_input_details"]
    events = await stream(client, {"inputs": FLAGS, "parameters": most})
    streamed = [event["token"]["text"] for event in events if not event["token"]["special"]]
    assert streamed == told
    cut = FLAGS.encode()[:limit].decode(errors="replace")
    assert "".join(told) == cut
    if limit == 50:
        assert told[:3] == ["a", "", "\u00e9"]
        assert events[-1]["generated_text"] == answer["generated_text"] == FLAGS


async def test_alternatives_have_the_texts_that_they_would_have_in_the_place_of_a_token(serve: Serve) -> None:
    """The fake engine's likeliest tokens are the bytes 0 and 1, which end no character."""
    client = await serve(FakeEngine(reply=lambda _: "\u00e9"))
    body: Body = {"inputs": "a", "parameters": {"max_new_tokens": 5, "top_n_tokens": 1}}
    events = await stream(client, body)
    assert [event["top_tokens"][0]["text"] for event in events[:2]] == ["\0", "\ufffd\0"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"inputs": ["a", "b"]},
        {"inputs": "a", "parameters": {"max_new_tokens": 0}},
        {"inputs": "a", "parameters": {"top_p": 2}},
        {"inputs": "a", "parameters": {"watermark": True}},
        {"inputs": "a", "parameters": 3},
        {"inputs": "a", "stream": True, "parameters": {"best_of": 2, "do_sample": True}},
        {"inputs": "a", "stream": True, "parameters": {"decoder_input_details": True}},
    ],
)
async def test_what_is_wrong_is_a_validation_error(serve: Serve, body: Body) -> None:
    response = await (await serve(FakeEngine())).post("/generate", json=body)
    error = await response.json()
    check_shape(TgiError, error)
    assert (response.status, error["error_type"]) == (422, "validation")


async def test_errors_have_its_types(serve: Serve) -> None:
    for engine, status, kind in (
        (FakeEngine(refuse=OverloadedError("full", 1.0)), 429, "overloaded"),
        (FakeEngine(fail_at=0), 424, "generation"),
    ):
        response = await (await serve(engine)).post("/generate", json={"inputs": "a"})
        assert (response.status, (await response.json())["error_type"]) == (status, kind)
    events = await stream(await serve(FakeEngine(fail_at=1)), {"inputs": "a"})
    assert events[-1]["error_type"] == "generation"


async def test_info_and_times(serve: Serve) -> None:
    client = await serve(FakeEngine())
    info = await (await client.get("/info")).json()
    check_shape(TgiInfo, info)
    assert (info["model_id"], info["max_batch_size"]) == ("fake", 2)
    headers = (await client.post("/generate", json={"inputs": "a"})).headers
    assert {"x-queue-time", "x-inference-time", "x-time-per-token"} <= {name.lower() for name in headers}
