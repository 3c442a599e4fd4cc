"""Questions after a long text. The first token of one question merges with the text's last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rnn_engine.demo import model_path, tokenizer_path
from rnn_engine.engine import Engine
from rnn_engine.forward import CpuRunner
from rnn_engine.loading.parts import assemble
from rnn_engine.reference import Weights
from rnn_engine.requests import GenerateRequest, SamplingParams, Started
from rnn_engine.tokenizer import NoTokenizer, Tokenizer, load_tokenizer
from rnn_engine.versions.v7 import run_layers
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.tokens import pack, shared_tokens
from tests.support.clients import Heard
from tests.support.engines import PATIENCE, listen
from tests.support.models import random_model, tiny_shape

PARAGRAPH = (
    "The river ran past the old mill, and the miller counted his sacks. In the evening the wind fell, and the boats "
    "came home one by one. Nobody spoke of the storm.\n\n"
)
TEXT = PARAGRAPH * 13 + "Then the miller asked the keeper of the"
QUESTIONS = (" lock?", " zorks?", " zorkmid?", "n?", "n who?")  # " the" and "n" are the token " then"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(str(tokenizer_path()), model_path(), 1 << 20)


async def ask_all(
    prompts: Sequence[Sequence[int]], tokenizer: Tokenizer, step: int, *, states: int = 100
) -> list[Heard]:
    """Ask the prompts one after the other, with memory for `states` states."""
    model = random_model(tiny_shape(vocab=tokenizer.size), seed=3)
    runner = CpuRunner(Weights.read(model), run_layers, num_slots=2, max_tokens=step)
    config = CacheConfig(host_capacity=states * (model.shape.state_bytes + 4 * tokenizer.size))
    cache = make_cache(model.shape, "a model", runner, config) if states > 0 else None
    parts = assemble(runner, tokenizer, model="tiny", device="cpu", weights="f32", cache=cache)
    async with asyncio.timeout(PATIENCE), Engine(parts) as engine:
        return [await listen(engine, ask(prompt)) for prompt in prompts]


def ask(prompt: Sequence[int]) -> GenerateRequest:
    sampling = SamplingParams(temperature=0.0, seed=0)
    return GenerateRequest(prompt, max_tokens=3, stop_tokens=(), sampling=sampling, logprobs=0)


def most_shared(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return for each prompt the most tokens that it shares with an earlier one."""
    packed = [pack(prompt) for prompt in prompts]
    return [max([0, *(shared_tokens(one, other) for other in packed[:number])]) for number, one in enumerate(packed)]


def found(heard: Sequence[Heard]) -> list[int]:
    """Return for each request the number of its cached tokens."""
    return [event.cached_tokens for one in heard for event in one.events if isinstance(event, Started)]


@pytest.mark.parametrize("step", [64, 256])
@pytest.mark.parametrize("is_known", [pytest.param(True, id="of the text"), pytest.param(False, id="of ids alone")])
async def test_no_question_runs_the_text_again_because_of_one_token(
    tokenizer: Tokenizer, is_known: bool, step: int
) -> None:
    prompts = [tokenizer.encode(TEXT + question) for question in QUESTIONS]
    assert len(tokenizer.encode(TEXT)) == 1281
    assert most_shared(prompts) == [0, 1281, 1286, 1280, 1281]
    served = tokenizer if is_known else NoTokenizer(tokenizer.size, "none was chosen")
    heard, alone = await ask_all(prompts, served, step), await ask_all(prompts, served, step, states=0)
    saved = found(heard)
    assert min(saved[2], saved[4]) >= 1280
    assert all(10 * one >= 9 * most for one, most in zip(saved, most_shared(prompts), strict=True))
    assert [[info.token for info in one.tokens] for one in heard] == [
        [info.token for info in one.tokens] for one in alone
    ]
    for one, other in zip(heard, alone, strict=True):
        assert [info.logprob for info in one.tokens] == pytest.approx([info.logprob for info in other.tokens], abs=1e-4)


@pytest.mark.parametrize("step", [64, 128])
async def test_no_question_runs_the_text_again_where_memory_is_full_of_other_states(
    tokenizer: Tokenizer, step: int
) -> None:
    others = [tokenizer.encode(f"{number}. {PARAGRAPH}") for number in range(32)]
    text = tokenizer.encode(TEXT + QUESTIONS[0])
    changed = [*text[: 19 * len(text) // 20], *tokenizer.encode(" And then?")]
    *_, asked, again = found(await ask_all([*others, *others, text, changed], tokenizer, step, states=32))
    assert asked == 0
    assert again >= 0.9 * most_shared([text, changed])[1]
