"""/v1/completions: every form of prompt, and every part of the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rnn_engine.requests import Finished, GenerateRequest, Started
from rnn_engine.telemetry import Timing
from rnn_engine_server.apis.common.answering import Outcome
from rnn_engine_server.apis.openai.schemas import Completion
from tests.support.fake_engine import RANDOM_SEED, FakeEngine, encode
from tests.support.http import Body, Serve, post, post_stream


def told_apart(request: GenerateRequest) -> str:
    return f"{len(request.prompt)} tokens"


async def complete(serve: Serve, engine: FakeEngine, **body: object) -> Body:
    return await post(await serve(engine), "/v1/completions", Completion, body)


async def test_answer_has_openai_shape(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: "Hello", cached_tokens=1)
    answer = await complete(serve, engine, prompt="Say", model="fake", seed=7)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "fake"
    assert answer["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "seed": 7}]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


@pytest.mark.parametrize(
    ("prompt", "token_lists"),
    [
        ("ab", [encode("ab")]),
        ("", [[0]]),
        (["ab", "c"], [encode("ab"), encode("c")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
async def test_forms_of_prompt(serve: Serve, prompt: object, token_lists: list[list[int]]) -> None:
    engine = FakeEngine(reply=told_apart)
    answer = await complete(serve, engine, prompt=prompt)
    assert [list(request.prompt) for request in engine.requests] == token_lists
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(token_lists)))
    assert [choice["text"] for choice in answer["choices"]] == [f"{len(tokens)} tokens" for tokens in token_lists]


async def test_list_of_prompts_runs_side_by_side_but_not_beyond_the_slots(serve: Serve) -> None:
    engine = FakeEngine(num_slots=3)
    answer = await complete(serve, engine, prompt=[[token] for token in range(10)])
    assert len(answer["choices"]) == 10
    assert engine.most_active == 3


async def test_copies_differ_by_seed_and_the_prompt_counts_once(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda request: str(request.sampling.seed))
    answer = await complete(serve, engine, prompt=["ab", "cde"], n=3, seed=11)
    seeds = [request.sampling.seed for request in engine.requests]
    assert seeds[0] == seeds[3] == 11
    assert len(set(seeds)) == 3
    assert [choice["text"] for choice in answer["choices"]] == [str(seed) for seed in seeds]
    assert answer["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize("seed", [None, -1])
async def test_no_seed_is_the_engines_random_one(serve: Serve, seed: int | None) -> None:
    engine = FakeEngine()
    answer = await complete(serve, engine, prompt="a", seed=seed)
    assert engine.requests[0].sampling.seed is None
    assert answer["choices"][0]["seed"] == RANDOM_SEED


async def test_defaults(serve: Serve) -> None:
    engine = FakeEngine()
    await complete(serve, engine, prompt="a", temperature=None, max_tokens=None, stop=None)
    [request] = engine.requests
    assert (request.max_tokens, request.stop, request.logprobs) == (256, (), None)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (1.0, 0.5, 128)


async def test_sampling_fields_reach_the_engine(serve: Serve) -> None:
    engine = FakeEngine()
    body: Body = {
        "temperature": 0.25,
        "top_p": 0.75,
        "top_k": 3,
        "presence_penalty": 1.5,
        "frequency_penalty": 2,
        "penalty_decay": 0.5,
        "seed": 2**64 - 1,
    }
    await complete(serve, engine, prompt="a", stop=["x", "yz"], logit_bias={"3": -1, "5": 2.5}, **body)
    [request] = engine.requests
    assert request.stop == (b"x", b"yz")
    assert request.sampling.logit_bias == {3: -1.0, 5: 2.5}
    assert {name: getattr(request.sampling, name) for name in body} == body


async def test_ai00_name_of_the_bias(serve: Serve) -> None:
    engine = FakeEngine()
    await complete(serve, engine, prompt="a", bias={"3": 1})
    assert engine.requests[0].sampling.logit_bias == {3: 1.0}


async def test_length_and_stop_are_told(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: "Hello there")
    cut = await complete(serve, engine, prompt="a", max_tokens=4)
    assert (cut["choices"][0]["text"], cut["choices"][0]["finish_reason"]) == ("Hell", "length")


async def test_stop_string_is_not_in_the_text(serve: Serve) -> None:
    answer = await complete(serve, FakeEngine(reply=lambda _: "Hello there"), prompt="a", stop=" th")
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("Hello", "stop")


async def test_harmless_fields_of_official_clients_are_accepted(serve: Serve) -> None:
    await complete(serve, FakeEngine(), prompt="a", user="me", store=False, metadata={}, best_of=1, suffix=None)


class TestLogprobs:
    async def test_tokens_and_offsets(self, serve: Serve) -> None:
        answer = await complete(serve, FakeEngine(reply=lambda _: "aé"), prompt="xy", logprobs=2)
        a, e1, e2 = b"a"[0] + 1, 0xC3 + 1, 0xA9 + 1
        assert answer["choices"][0]["logprobs"] == {
            "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "token_id:0"],  # the last ended the text
            "token_logprobs": [-a / 100, -e1 / 100, -e2 / 100, 0.0],
            "top_logprobs": [
                {"\x00": -0.01, "\x01": -0.02, "a": -a / 100},
                {"\x00": -0.01, "\x01": -0.02, "bytes:\\xc3": -e1 / 100},
                {"\x00": -0.01, "\x01": -0.02, "bytes:\\xa9": -e2 / 100},
                {"\x00": -0.01, "\x01": -0.02, "token_id:0": 0.0},
            ],
            "text_offset": [0, 1, 1, 2],
        }

    async def test_echo_scores_the_prompt(self, serve: Serve) -> None:
        engine = FakeEngine(reply=lambda _: "!")
        answer = await complete(serve, engine, prompt="xyz", echo=True, logprobs=1, max_tokens=1)
        [choice] = answer["choices"]
        assert choice["text"] == "xyz!"
        assert choice["logprobs"]["tokens"] == ["x", "y", "z", "!"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
        assert choice["logprobs"]["token_logprobs"] == [None, -1.22, -1.23, -0.34]
        assert choice["logprobs"]["top_logprobs"][0] is None
        assert choice["logprobs"]["top_logprobs"][1] == {"\x00": -0.01, "y": -1.22}

    async def test_echo_without_generation(self, serve: Serve) -> None:
        answer = await complete(serve, FakeEngine(), prompt=[[121, 122], [123]], echo=True, logprobs=0, max_tokens=0)
        assert [choice["text"] for choice in answer["choices"]] == ["xy", "z"]
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
        assert answer["choices"][0]["logprobs"]["top_logprobs"] == [None, {"y": -1.22}]
        assert answer["usage"]["completion_tokens"] == 0

    async def test_echo_alone_scores_nothing(self, serve: Serve) -> None:
        engine = FakeEngine(reply=lambda _: "!")
        answer = await complete(serve, engine, prompt="xyz", echo=True)
        assert answer["choices"][0]["text"] == "xyz!"
        assert answer["choices"][0]["logprobs"] is None
        assert engine.requests[0].score_from is None

    async def test_token_without_text_is_named_by_its_number(self, serve: Serve) -> None:
        answer = await complete(serve, FakeEngine(), prompt=[0, 98], echo=True, logprobs=0, max_tokens=0)
        assert answer["choices"][0]["logprobs"]["tokens"] == ["token_id:0", "a"]


class TestBestOf:
    """The fake engine gives a byte a lower log-probability, the greater it is. The stop token's is 0."""

    @staticmethod
    def engine(*replies: str) -> FakeEngine:
        """Return an engine that answers the first copies with `replies`, one after the other."""
        engine = FakeEngine(num_slots=len(replies))
        engine.reply = lambda request: replies[engine.requests.index(request) % len(replies)]
        return engine

    async def test_the_best_means_come_first(self, serve: Serve) -> None:
        answer = await complete(serve, self.engine("zz", "a", "bb"), prompt="x", seed=1, best_of=3, n=2)
        assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "a"), (1, "bb")]
        assert answer["usage"]["completion_tokens"] == 5
        assert answer["usage"]["prompt_tokens"] == 1

    async def test_a_stop_token_counts_as_one(self, serve: Serve) -> None:
        ended = await complete(serve, self.engine("bbbb", "b"), prompt="x", seed=1, best_of=2)
        assert ended["choices"][0]["text"] == "b"
        cut = await complete(serve, self.engine("c", "bbb"), prompt="x", seed=1, best_of=2, max_tokens=2)
        assert cut["choices"][0]["text"] == "c"

    async def test_every_prompt_has_its_own(self, serve: Serve) -> None:
        engine = self.engine("z", "a", "b", "y")
        answer = await complete(serve, engine, prompt=["x", "xy"], best_of=2, echo=True, seed=1)
        assert [choice["text"] for choice in answer["choices"]] == ["xa", "xyb"]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
        assert answer["choices"][0]["seed"] == engine.requests[1].sampling.seed != 1

    async def test_as_many_as_are_returned_stay_in_order(self, serve: Serve) -> None:
        answer = await complete(serve, self.engine("z", "a"), prompt="x", seed=1, best_of=2, n=2)
        assert [choice["text"] for choice in answer["choices"]] == ["z", "a"]

    async def test_nothing_drawn(self, serve: Serve) -> None:
        answer = await complete(serve, FakeEngine(), prompt="x", seed=1, best_of=3, max_tokens=0)
        assert [choice["text"] for choice in answer["choices"]] == [""]


async def test_token_ids_on_request(serve: Serve) -> None:
    answer = await complete(serve, FakeEngine(reply=lambda _: "ab"), prompt="xy", return_token_ids=True)
    assert answer["choices"][0]["prompt_token_ids"] == encode("xy")
    assert answer["choices"][0]["token_ids"] == encode("ab")


@pytest.mark.parametrize(("most", "read"), [(2, "yz"), (9, "xyz"), (-1, "xyz"), (None, "xyz")])
async def test_only_the_last_tokens_of_a_prompt_are_read_on_request(serve: Serve, most: int | None, read: str) -> None:
    engine = FakeEngine()
    await complete(serve, engine, prompt="xyz", truncate_prompt_tokens=most)
    assert list(engine.requests[0].prompt) == encode(read)


async def test_tokens_named_by_their_ids_on_request(serve: Serve) -> None:
    body = {"prompt": "xy", "echo": True, "logprobs": 1, "return_tokens_as_token_ids": True}
    logprobs = (await complete(serve, FakeEngine(reply=lambda _: "ab"), **body))["choices"][0]["logprobs"]
    assert logprobs["tokens"][:4] == [f"token_id:{token}" for token in encode("xyab")]
    assert all(name.startswith("token_id:") for tops in logprobs["top_logprobs"][1:] for name in tops)


async def test_stream_gives_what_the_whole_answer_gives(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda request: f"é{len(request.prompt)}é", num_slots=2)
    body = {"prompt": ["x", "xy", "xyz"], "echo": True, "logprobs": 1, "return_token_ids": True, "n": 2, "seed": 1}
    client = await serve(engine)
    whole = await post(client, "/v1/completions", Completion, body)
    chunks = await post_stream(client, "/v1/completions", Completion, body)
    assert not any("usage" in chunk for chunk in chunks)
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for part in parts for value in part["logprobs"][name]] == values
        assert [token for part in parts for token in part.get("token_ids", [])] == choice["token_ids"]
        assert parts[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert (parts[-1]["finish_reason"], parts[-1]["seed"]) == ("stop", choice["seed"])


async def test_priority_and_marks_reach_the_engine(serve: Serve) -> None:
    engine = FakeEngine()
    await post(await serve(engine), "/v1/completions", Completion, {"prompt": "abcd", "priority": 7, "marks": [2, 3]})
    assert engine.requests[0].priority == 7
    assert list(engine.requests[0].checkpoint_positions) == [2, 3]


@pytest.mark.parametrize("field", ["speculate", "speculative.n_max"])
async def test_the_length_of_drafts_reaches_the_engine(serve: Serve, field: str) -> None:
    engine = FakeEngine()
    await post(await serve(engine), "/v1/completions", Completion, {"prompt": "abcd", field: 5})
    assert engine.requests[0].speculate == 5


def test_drafts_are_told_where_there_were_any() -> None:
    finished = Finished("length", 9, seed=1)
    outcome = Outcome(started=Started(3, 0, Timing(1.0, 2.0, 3.0)), finished=finished)
    assert "draft_n" not in outcome.times()["timings"]
    outcome.finished = replace(finished, draft_tokens=7, accepted_tokens=4)
    timings = outcome.times()["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (7, 4)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("speculate", -1, "speculate: -1 is not allowed; expected at least 0"),
        ("speculate", 65, "speculate: 65 is not allowed; expected at most 64"),
        ("priority", 101, "priority: 101 is not allowed; expected at most 100"),
        ("marks", [5], "marks position: 5 is not allowed; expected a number from 0 to 4"),
    ],
)
async def test_priority_and_marks_have_bounds(serve: Serve, field: str, value: object, told: str) -> None:
    client = await serve(FakeEngine())
    refused = await client.post("/v1/completions", json={"prompt": "abcd", field: value})
    assert refused.status == 400
    assert told in (await refused.json())["error"]["message"]
