"""A tiny trained RWKV-6 has its skills in numpy and on a GPU, also from the cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rnn_engine.engine import Engine
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest, SamplingParams, Started, TextDelta
from tests.support.answers import right_answers
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.skills_v6 import SKILLS, held_out
from tools.demo_model.corpus.dialogue import Dialogue

MODEL = Path(__file__).with_name("skills_v6.safetensors")
ITEMS = 100  # of each skill, none of which was trained
RIGHT = 95
TOKENIZER = ByteTokenizer()
END = TOKENIZER.encode("\n")[0]


@pytest.mark.parametrize("skill", SKILLS)
def test_it_has_its_skills_in_numpy(skill: str) -> None:
    with open_model(MODEL) as model:
        assert right_answers(model, TOKENIZER, held_out(skill, ITEMS)) >= RIGHT


@asynccontextmanager
async def loaded() -> AsyncGenerator[Engine, None]:
    async with await Engine.load(MODEL, LoadSettings("0", "none"), num_slots=8) as engine:
        yield engine


async def answer(engine: Engine, dialogue: Dialogue) -> tuple[str, int]:
    """Return the model's answer, and the number of cached prompt tokens."""
    request = GenerateRequest(
        TOKENIZER.encode(dialogue.prompt),
        max_tokens=10,
        stop_tokens=(END,),
        sampling=SamplingParams(temperature=0.0),
        logprobs=0,
    )
    events = [event async for event in engine.generate(request)]
    started = events[0]
    assert isinstance(started, Started)
    tokens = [info.token for event in events if isinstance(event, TextDelta) for info in event.tokens]
    return b"".join(map(TOKENIZER.decode_bytes, tokens)).decode().strip(), started.cached_tokens


@pytest.mark.parametrize("skill", SKILLS)
async def test_it_has_its_skills_on_a_gpu_and_from_the_cache(skill: str) -> None:
    dialogues = held_out(skill, 40)
    async with loaded() as engine:
        first = await asyncio.gather(*(answer(engine, dialogue) for dialogue in dialogues))
        again = await asyncio.gather(*(answer(engine, dialogue) for dialogue in dialogues))
    right = sum(text == dialogue.answer for (text, _), dialogue in zip(first, dialogues, strict=True))
    assert right >= 38
    assert [text for text, _ in again] == [text for text, _ in first]
    assert all(cached == len(TOKENIZER.encode(d.prompt)) for (_, cached), d in zip(again, dialogues, strict=True))
