"""llama-server's own /completion."""

from __future__ import annotations

import json

import pytest

from rnn_engine_server.apis.llama_server.completion import LlamaCompletion, LlamaCompletionChunk
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import Body, Serve, check_shape, error_of, parse_event, post

PATH = "/completion"


async def complete(serve: Serve, engine: FakeEngine, **body: object) -> Body:
    return await post(await serve(engine), PATH, LlamaCompletion, body)


async def test_answer(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: "Hi\nthere", cached_tokens=1)
    answer = await complete(
        serve, engine, prompt="Say", n_predict=20, seed=7, stop=["er"], id_slot=1, cache_prompt=True
    )
    settings = answer.pop("generation_settings")
    assert (settings["n_predict"], settings["seed"], settings["stop"]) == (20, 7, ["er"])
    timings = answer.pop("timings")
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (2, 1, 5)
    assert answer == {
        "index": 0,
        "content": "Hi\nth",
        "tokens": [],
        "id_slot": -1,
        "stop": True,
        "model": "fake",
        "tokens_predicted": 5,
        "tokens_evaluated": 3,
        "prompt": "Say",
        "has_new_line": True,
        "truncated": False,
        "stop_type": "word",
        "stopping_word": "er",
        "tokens_cached": 1,
    }


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [encode("ab")]),
        ([5, 6], [[5, 6]]),
        ([5, "ab", 6], [[5, *encode("ab"), 6]]),
        (["a", [5, "b"]], [encode("a"), [5, *encode("b")]]),
        ({"prompt_string": "ab"}, [encode("ab")]),
        ([{"prompt_string": "ab"}, "c"], [encode("ab"), encode("c")]),
    ],
)
async def test_forms_of_prompt(serve: Serve, prompt: object, tokens: list[list[int]]) -> None:
    engine = FakeEngine(reply=lambda _: "x")
    response = await (await serve(engine)).post(PATH, json={"prompt": prompt})
    answers = await response.json()
    assert [list(request.prompt) for request in engine.requests] == tokens
    assert [answer["index"] for answer in (answers if len(tokens) > 1 else [answers])] == list(range(len(tokens)))


@pytest.mark.parametrize(("limit", "stop_type"), [(2, "limit"), (20, "eos"), (-1, "eos")])
async def test_how_an_answer_ends(serve: Serve, limit: int, stop_type: str) -> None:
    answer = await complete(serve, FakeEngine(), prompt="a", n_predict=limit)
    assert answer["stop_type"] == stop_type


async def test_a_stream_tells_tokens_and_ends_with_the_facts(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "Hé"))
    response = await client.post(PATH, json={"prompt": "a", "stream": True})
    *chunks, last = [parse_event(frame) for frame in (await response.text()).split("\n\n")[:-1]]
    for chunk in chunks:
        check_shape(LlamaCompletionChunk, chunk)
    check_shape(LlamaCompletion, last)
    assert "".join(chunk["content"] for chunk in chunks) == "Hé"
    assert [token for chunk in chunks for token in chunk["tokens"]] == encode("Hé")
    assert (last["content"], last["stop"], last["tokens_predicted"]) == ("", True, 3)


async def test_the_tokens_with_probabilities_are_together_the_text(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "aé🚀"))
    body = {"prompt": "é", "n_probs": 1, "post_sampling_probs": False}
    answer = await post(client, PATH, LlamaCompletion, body)
    response = await client.post(PATH, json={**body, "stream": True})
    chunks = [parse_event(frame) for frame in (await response.text()).split("\n\n")[:-1]]
    streamed = [each for chunk in chunks for each in chunk.get("completion_probabilities", [])]
    for told in (answer["completion_probabilities"][:-1], streamed):
        assert [each["token"] for each in told] == ["a", "", "é", "", "", "", "🚀"]
        assert bytes(byte for each in told for byte in each["bytes"]).decode() == "aé🚀"


async def test_probabilities(serve: Serve) -> None:
    answer = await complete(serve, FakeEngine(reply=lambda _: "A"), prompt="a", n_probs=1)
    first, end = answer["completion_probabilities"]
    assert first == {
        "id": 66,
        "token": "A",
        "bytes": [65],
        "logprob": -0.66,
        "top_logprobs": [{"id": 1, "token": "\0", "bytes": [0], "logprob": -0.01}],
    }
    assert end["id"] == 0


async def test_probabilities_of_the_prompt(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "A"))
    body = {"prompt": "ab", "n_probs": 1, "echo": True}
    whole = await post(client, PATH, LlamaCompletion, body)
    first, second = whole["prompt_probabilities"]
    top = [{"id": 1, "token": "\0", "bytes": [0], "logprob": -0.01}]
    assert first == {"id": 98, "token": "a", "bytes": [97], "logprob": None, "top_logprobs": []}
    assert second == {"id": 99, "token": "b", "bytes": [98], "logprob": -0.99, "top_logprobs": top}
    response = await client.post(PATH, json={**body, "stream": True})
    chunk, *chunks = [parse_event(frame) for frame in (await response.text()).split("\n\n")[:-1]]
    check_shape(LlamaCompletionChunk, chunk)
    assert (chunk["prompt_probabilities"], chunk["content"], chunk["tokens_evaluated"]) == ([first, second], "", 2)
    assert not any("prompt_probabilities" in other for other in chunks)
    assert "prompt_probabilities" not in await complete(serve, FakeEngine(), prompt="ab", n_probs=1)


async def test_only_some_fields(serve: Serve) -> None:
    body = {"prompt": "a", "seed": 3, "response_fields": ["content", "generation_settings/seed", "no such field"]}
    response = await (await serve(FakeEngine(reply=lambda _: "Hi"))).post(PATH, json=body)
    assert await response.json() == {"content": "Hi", "generation_settings/seed": 3}


async def test_only_some_fields_of_the_last_event_of_a_stream(serve: Serve) -> None:
    """llama-server chooses the fields of its final result alone."""
    body = {"prompt": "ab", "echo": True, "n_probs": 1, "stream": True, "return_progress": True}
    client = await serve(FakeEngine(reply=lambda _: "Hi"))
    response = await client.post(PATH, json={**body, "response_fields": ["tokens_predicted", "stop"]})
    *events, last = [parse_event(frame) for frame in (await response.text()).split("\n\n")[:-1]]
    assert last == {"tokens_predicted": 2, "stop": True}
    for event in events:
        check_shape(LlamaCompletionChunk, event)
    assert events[0]["prompt_progress"]["total"] == 2
    assert sum("prompt_probabilities" in event for event in events) == 1
    assert "".join(event["content"] for event in events) == "Hi"


async def test_biases_that_forbid_can_be_told(serve: Serve) -> None:
    answer = await complete(serve, FakeEngine(), prompt="a", logit_bias=[[5, False], [6, 1.5]])
    assert answer["generation_settings"]["logit_bias"] == [{"token": 5, "bias": None}, {"token": 6, "bias": 1.5}]


@pytest.mark.parametrize(("ignore", "told"), [(True, [{"token": 0, "bias": None}]), (False, [])])
async def test_an_end_that_is_ignored_is_told_as_a_bias(serve: Serve, ignore: bool, told: list[Body]) -> None:
    answer = await complete(serve, FakeEngine(), prompt="a", ignore_eos=ignore)
    assert answer["generation_settings"]["logit_bias"] == told


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a", "image_data": [{"id": 1}]}, "image_data"),
        ({"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt"),
        ({"prompt": "a", "lora": [{"id": 0, "scale": 1.0}]}, "lora"),
    ],
)
async def test_what_the_model_can_not_do_is_refused(serve: Serve, fields: Body, param: str) -> None:
    error = await error_of(await (await serve(FakeEngine())).post(PATH, json=fields), 400)
    assert error["param"] == param


async def test_a_stream_that_fails_ends_with_an_error(serve: Serve) -> None:
    client = await serve(FakeEngine(fail_at=1))
    response = await client.post(PATH, json={"prompt": "a", "stream": True})
    last = (await response.text()).split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "step_failed"


async def test_infill_is_refused_with_the_reason(serve: Serve) -> None:
    error = await error_of(await (await serve(FakeEngine())).post("/infill", json={"input_prefix": "a"}), 501)
    assert "recurrent" in error["message"]
