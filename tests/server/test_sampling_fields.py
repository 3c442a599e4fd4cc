"""The sampling fields of ai00, llama-server and vLLM under their own names, and values that clients always send."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from pydantic import ValidationError

from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.sampling.params import Ai00Mirostat, Ai00Nucleus, Ai00Typical
from rnn_engine_server.apis.openai.schemas import ChatCompletion, ChatRequest, Completion, CompletionRequest
from rnn_engine_server.core.settings import Limits
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import Serve, post

TWO_ROUTES = (
    ("/v1/completions", Completion, {"prompt": "a"}),
    ("/v1/chat/completions", ChatCompletion, {"messages": [{"role": "user", "content": "a"}]}),
)

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "dry_multiplier": (0, None),
    "dynatemp_range": (0.0, None),
    "length_penalty": (1.0, None),
    "logit_bias": ({}, [], None),
    "min_keep": (0,),
    "min_p": (0, 0.0, None),
    "min_tokens": (0, None),
    "mirostat": (0, None),
    "presence_penalty": (0, None),
    "repeat_penalty": (1, 1.0, None),
    "repetition_penalty": (1.0, None),
    "sampler": (None,),
    "sampler_override": (None,),
    "samplers": (None,),
    "seed": (-1, None),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([], None),
    "bad_words": ([], None),
    "temperature": (1.0, None),
    "tfs_z": (1.0,),
    "top_k": (128, None),
    "top_n_sigma": (-1, 0, None),
    "typical_p": (1.0, None),
    "use_beam_search": (False, None),
    "xtc_probability": (0, None),
}


async def asked(serve: Serve, **fields: object) -> GenerateRequest:
    engine = FakeEngine()
    await post(await serve(engine), "/v1/completions", Completion, {"prompt": "a", **fields})
    return engine.requests[0]


def params(**fields: object) -> SamplingParams:
    [sampling] = CompletionRequest.model_validate({"prompt": "a", **fields}).samplings(1, encode, (0,))
    return sampling


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest])
@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_values_change_nothing(kind: type[CompletionRequest] | type[ChatRequest], name: str) -> None:
    least = {"prompt": "a"} if kind is CompletionRequest else {"messages": {"role": "user", "content": "a"}}
    for value in NEUTRAL[name]:
        [sampling] = kind.model_validate({**least, name: value}).samplings(1, encode, (0,))
        assert not sampling.uses_chain
        unlike = SamplingParams(repeat_last_n=sampling.repeat_last_n, top_n_sigma=sampling.top_n_sigma)
        assert sampling == unlike


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"type": "Nucleus"}, Ai00Nucleus(0.5, 128, 1.0, 0.3, 0.3, 0.99654026)),
        ({"type": "Nucleus", "top_p": 0.8, "temperature": 2, "top_k": 5}, Ai00Nucleus(0.8, 5, 2.0)),
        ({"type": "Typical", "tau": 0.9, "penalty_decay": 1}, Ai00Typical(0.9, penalty_decay=1.0)),
        ({"type": "Mirostat", "tau": 4, "rate": 0.2}, Ai00Mirostat(4.0, 0.2)),
        ({"type": "Mirostat", "learning_rate": 0.2}, Ai00Mirostat(3.0, 0.2)),
        ({"type": "Mirostat", "Rate": 0.09, "tau": 0.5}, Ai00Mirostat(0.5, 0.09)),
        ({"type": "Mirostat", "rate": 0.2, "learning_rate": 0.2}, Ai00Mirostat(3.0, 0.2)),
        ({"type": "Typical", "tau": 5, "penalty": 400}, Ai00Typical(5)),
    ],
)
def test_ai00s_sampler_objects(written: dict[str, object], expected: object) -> None:
    assert params(sampler=written).sampler == expected
    assert params(sampler_override=written, top_p=0.1).sampler == expected


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(["rate", "learning_rate", "Rate"], 2)))
def test_a_setting_of_a_sampler_under_two_names_has_one_value(first: str, second: str) -> None:
    with pytest.raises(ValidationError, match="the same value as rate, which is another name for it"):
        params(sampler={"type": "Mirostat", first: 0.1, second: 0.2})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["top_k", "temperature"], ("top_k", "temperature")),
        (
            ["penalties", "typical_p", "temp", "nucleus", "min-p"],
            ("penalties", "typ_p", "temperature", "top_p", "min_p"),
        ),
        ("edskypmxt", ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")),
        (["top_k", "adaptive_p", "tfs_z"], ("top_k",)),  # values that switch these on are refused
        ([], ()),
        ("", ()),
    ],
)
def test_llama_servers_order(written: object, expected: tuple[str, ...]) -> None:
    sampling = params(samplers=written)
    assert sampling.samplers == expected
    assert sampling.uses_chain


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"3": -1, "5": 2.5}, {3: -1.0, 5: 2.5}),
        ({"3": False}, {3: -math.inf}),
        ({"ab": 1}, dict.fromkeys(encode("ab"), 1.0)),
        ([[3, -1], [5, False]], {3: -1.0, 5: -math.inf}),
        ([["ab", 2], ["b", 1]], {encode("a")[0]: 2.0, encode("b")[0]: 3.0}),
        ([[3, 1], [3, 1.5]], {3: 2.5}),
    ],
)
def test_every_form_of_a_bias(written: object, expected: dict[int, float]) -> None:
    assert params(logit_bias=written).logit_bias == expected


def test_vllms_repetition_penalty_counts_all_tokens_and_llama_servers_the_last_64() -> None:
    assert params(repeat_penalty=1.1).repeat_last_n == 64
    assert params(repetition_penalty=1.1).repeat_last_n == -1
    assert params(repetition_penalty=1.1, repeat_last_n=5).repeat_last_n == 5


def test_bad_words_are_their_tokens_alone_and_after_a_space_where_that_makes_another_first_token() -> None:
    assert params(bad_words=["ab", [7, 8]]).bad_words == [encode("ab"), (7, 8)]
    sampling = SamplingParams(bad_words=["ab"]).resolved(lambda text: [len(text), 1])
    assert sampling.bad_words == [[2, 1], [3, 1]]


@pytest.mark.parametrize(("path", "answer", "body"), TWO_ROUTES)
async def test_the_end_of_a_text(serve: Serve, path: str, answer: Any, body: dict[str, object]) -> None:  # noqa: ANN401
    engine = FakeEngine()
    url = await serve(engine)
    await post(url, path, answer, {**body, "ignore_eos": True, "min_tokens": 3, "stop_token_ids": [5, 6]})
    await post(url, path, answer, body)
    ended, plain = engine.requests
    assert (ended.min_tokens, ended.stop_tokens) == (3, (0, 5, 6))
    assert ended.sampling.logit_bias == {0: -math.inf}
    assert (plain.min_tokens, plain.stop_tokens, plain.sampling.logit_bias) == (0, (0,), {})


async def test_without_a_limit_an_answer_is_as_long_as_the_servers_limits_allow(serve: Serve) -> None:
    limits = Limits()
    assert (await asked(serve, max_tokens=-1)).max_tokens == limits.max_answer_tokens
    assert (await asked(serve, max_tokens=-1, n=4)).max_tokens == limits.max_answer_tokens // 4
    assert (await asked(serve, max_tokens=-1, logprobs=3)).max_tokens == limits.max_logprob_entries // 4
    body = CompletionRequest.model_validate({"prompt": "a", "max_tokens": -1, "stream": True})
    assert body.most_tokens(limits) == 2**31 - 1
