"""Choices over HTTP, with the fake engine and with the demo model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rnn_engine.requests import GenerateRequest, TokenInfo
from rnn_engine_server.apis.engine.choices import Choices, Chooses
from rnn_engine_server.apis.openai.schemas import Completion
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import Body, Client, Serve, error_of, post

PATH = "/v1/choices"
AI00 = "/api/oai/chooses"


async def test_ai00_answer_is_ranked_by_perplexity(serve: Serve) -> None:
    """The fake engine gives a byte a lower log-probability, the greater it is."""
    client = await serve(FakeEngine())
    for path in (AI00, "/api/oai/v1/chooses"):
        answer = await post(client, path, Chooses, {"input": ["ab", "c"], "choices": ["zz", "ay", "b"]})
        assert (answer["object"], answer["model"]) == ("list", "fake")
        assert [entry["choice"] for entry in answer["data"]] == ["b", "ay", "zz"]
        assert [entry["index"] for entry in answer["data"]] == [2, 1, 0]
        assert [entry["rank"] for entry in answer["data"]] == [0, 1, 2]
        assert [entry["perplexity"] for entry in answer["data"]] == pytest.approx([0.99, 1.10, 1.23])


async def test_equal_choices_keep_their_order(serve: Serve) -> None:
    answer = await post(await serve(FakeEngine()), AI00, Chooses, {"choices": ["a", "a", "a"]})
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "context"),
    [
        ({"input": "ab"}, encode("ab")),
        ({"input": ["a", "", "b"]}, encode("ab")),
        ({"input": [7, 8]}, [7, 8]),
        ({"input": ""}, [0]),
        ({"input": None}, [0]),
        ({"input": []}, [0]),
        ({}, [0]),
    ],
)
async def test_every_form_of_input(serve: Serve, given: Body, context: list[int]) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    for path, kind in ((PATH, Choices), (AI00, Chooses)):
        await post(client, path, kind, {**given, "choices": ["x"]})
    assert [list(request.prompt) for request in engine.requests] == [[*context, *encode("x")]] * 2


async def test_all_figures(serve: Serve) -> None:
    client = await serve(FakeEngine(cached_tokens=1))
    answer = await post(client, PATH, Choices, {"input": "xy", "choices": ["é", encode("ab")], "logprobs": True})
    first, second = answer["data"]
    assert (first["choice"], first["index"]) == ("ab", 1)
    assert first["total"] == pytest.approx(-0.98 - 0.99)
    assert first["mean"] == first["per_byte"] == pytest.approx(first["total"] / 2)
    assert first["perplexity"] == pytest.approx(math.exp((0.98 + 0.99) / 2))
    assert first["tokens"] == [{"id": 98, "token": "a", "logprob": -0.98}, {"id": 99, "token": "b", "logprob": -0.99}]
    assert [token["token"] for token in second["tokens"]] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert math.log(first["probability"] / second["probability"]) == pytest.approx(first["total"] - second["total"])
    assert first["probability"] + second["probability"] == pytest.approx(1)
    assert answer["usage"] == {
        "prompt_tokens": 2 + 2 + 2,
        "completion_tokens": 0,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


async def test_perplexity_that_no_float_holds_is_null(serve: Serve) -> None:
    class Certain(FakeEngine):
        """An engine that gives every token a log-probability of -1000."""

        def _score_prompt(self, request: GenerateRequest, first: int) -> tuple[TokenInfo, ...]:
            return tuple(replace(info, logprob=-1000.0) for info in super()._score_prompt(request, first))

    client = await serve(Certain())
    [entry] = (await post(client, PATH, Choices, {"input": "a", "choices": ["b"]}))["data"]
    assert (entry["mean"], entry["perplexity"]) == (-1000, None)
    [entry] = (await post(client, AI00, Chooses, {"input": "a", "choices": ["b"]}))["data"]
    assert entry["perplexity"] == 1000


async def test_calibrated_tokens_are_told_after_the_text_and_alone(serve: Serve) -> None:
    body: Body = {"input": "ab", "choices": ["xy"], "logprobs": True}
    client = await serve(FakeEngine())
    plain = (await post(client, PATH, Choices, body))["data"][0]
    entry = (await post(client, PATH, Choices, {**body, "calibrate": True}))["data"][0]
    assert [token["logprob"] for token in entry["tokens"]] == [token["logprob"] for token in plain["tokens"]]
    gains = [token["logprob"] - token["alone"] for token in entry["tokens"]]
    assert len(gains) == 2
    assert sum(gains) == pytest.approx(entry["total"])
    assert not any("alone" in token for token in plain["tokens"])


async def test_tokens_are_told_on_request_alone(serve: Serve) -> None:
    answer = await post(await serve(FakeEngine()), PATH, Choices, {"choices": ["a"]})
    assert answer["data"][0]["tokens"] is None


@pytest.mark.parametrize("figure", ["total", "mean", "per_byte"])
async def test_probabilities_of_a_figure(serve: Serve, figure: str) -> None:
    body = {"choices": ["a", "bcd", [0, 99]], "probability_of": figure}
    answer = await post(await serve(FakeEngine()), PATH, Choices, body)
    weights = [math.exp(entry[figure]) for entry in answer["data"]]
    likely = [entry["probability"] for entry in answer["data"]]
    assert likely == pytest.approx([weight / sum(weights) for weight in weights])


async def test_calibration_runs_the_choices_after_token_0(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    for path, kind, perplexity in ((PATH, Choices, 1), (AI00, Chooses, 0)):
        answer = await post(client, path, kind, {"input": "ab", "choices": ["x", "y"], "calibrate": True})
        assert [entry["perplexity"] for entry in answer["data"]] == [perplexity, perplexity]
    assert [list(request.prompt) for request in engine.requests[:4]] == [
        encode("abx"),
        encode("aby"),
        [0, *encode("x")],
        [0, *encode("y")],
    ]
    answer = await post(client, PATH, Choices, {"input": "ab", "choices": ["x", "y"], "calibrate": True})
    assert answer["usage"]["prompt_tokens"] == 2 + 2 + 1 + 2


BAD: list[tuple[Body, str, str]] = [
    ({}, "choices", "required"),
    ({"choices": []}, "choices", "at least 1 item"),
    ({"choices": ["a"] * 2049}, "choices", "at most 2048 choices (max_choices)"),
    ({"choices": "a"}, "choices", "a list"),
    ({"choices": ["a", ""]}, "choices.1", "not empty"),
    ({"choices": ["a", []]}, "choices.1", "not empty"),
    ({"choices": ["a", None]}, "choices.1", "a string or a list of token ids"),
    ({"choices": ["a", [1, "b"]]}, "choices.1", "a string or a list of token ids"),
    ({"choices": ["a", [1, 257]]}, "choices.1 token 1", "a token id from 0 to 256"),
    ({"choices": ["a"], "input": [1, -1]}, "input token 1", "a token id from 0 to 256"),
    ({"choices": ["a"], "input": ["a", 1]}, "input", "null, a string"),
    ({"choices": ["a"], "input": {}}, "input", "null, a string"),
    ({"choices": ["a"], "calibrate": 1}, "calibrate", "true or false"),
    ({"choices": ["a"], "state": 1}, "state", "a name or an id"),
    ({"choices": ["a"], "inptu": "b"}, "inptu", "did you mean 'input'?"),
]


@pytest.mark.parametrize("path", [PATH, AI00])
@pytest.mark.parametrize(("body", "field", "allowed"), BAD)
async def test_what_is_refused_runs_nothing(serve: Serve, path: str, body: Body, field: str, allowed: str) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    error = await error_of(await client.post(path, json=body), 400)
    assert error["param"] == field
    assert allowed in error["message"]
    assert engine.requests == []


async def test_figure_a_byte_of_what_has_none_is_refused(serve: Serve) -> None:
    client = await serve(FakeEngine())
    body = {"choices": ["a", [0]], "probability_of": "per_byte"}
    error = await error_of(await client.post(PATH, json=body), 400)
    assert error["param"] == "probability_of"
    error = await error_of(await client.post(PATH, json={"choices": ["a"], "probability_of": "bytes"}), 400)
    assert error["param"] == "probability_of"


async def test_unknown_state_is_an_error(serve: Serve) -> None:
    client = await serve(FakeEngine())
    await error_of(await client.post(PATH, json={"choices": ["a"], "state": "nobody"}), 404)


async def test_no_tokens_of_a_text_is_an_error(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    monkeypatch.setattr(engine, "tokenize", lambda _: [])
    client = await serve(engine)
    error = await error_of(await client.post(PATH, json={"choices": ["\u200b"]}), 400)
    assert error["param"] == "choices.0"
    assert "at least one token" in error["message"]


QUESTION = "User: What is the capital of France?\n\nAssistant:"
OPTIONS = [" Rome", " Paris", " Madrid", " Oslo"]


async def tokenize(client: Client, text: str) -> list[int]:
    answer: Body = await (await client.post("/tokenize", json={"content": text})).json()
    return list(answer["tokens"])


async def test_demo_model_chooses(demo: Client) -> None:
    answer = await post(demo, PATH, Choices, {"input": QUESTION, "choices": OPTIONS, "logprobs": True})
    assert answer["data"][0]["choice"] == " Paris"
    assert answer["data"][0]["probability"] > 0.5
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = await post(demo, PATH, Choices, {"input": QUESTION, "choices": OPTIONS})
    context = await tokenize(demo, QUESTION)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(context) - 1
    plain = await post(demo, AI00, Chooses, {"input": QUESTION, "choices": OPTIONS})
    assert [entry["index"] for entry in plain["data"]] == [entry["index"] for entry in answer["data"]]
    logarithms = [math.log(entry["perplexity"]) for entry in answer["data"]]
    assert [entry["perplexity"] for entry in plain["data"]] == pytest.approx(logarithms, abs=1e-4)


async def test_demo_model_scores_as_completions_do(demo: Client) -> None:
    """Compare with lm-eval's way: the prompt's log-probabilities, and one generated token."""
    answer = await post(demo, PATH, Choices, {"input": QUESTION, "choices": OPTIONS, "logprobs": True})
    context = await tokenize(demo, QUESTION)
    for entry in answer["data"]:
        ids = [token["id"] for token in entry["tokens"]]
        body = {"prompt": [[*context, *ids]], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        choice = (await post(demo, "/v1/completions", Completion, body))["choices"][0]
        scored = choice["logprobs"]["token_logprobs"][len(context) : -1]
        assert scored == pytest.approx([token["logprob"] for token in entry["tokens"]], abs=1e-4)
