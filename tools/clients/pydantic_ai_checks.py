"""pydantic-ai: agents whose answer is a pydantic model, and the loop of tool calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tools.clients.questions import GREEDY, MODEL, PERSON_QUESTION, WEATHER_QUESTION, Checks, Person, weather

MakeModel: TypeAlias = Callable[[str], OpenAIChatModel | OpenAIResponsesModel]


def _responses(url: str) -> OpenAIResponsesModel:
    return OpenAIResponsesModel(
        MODEL, provider=OpenAIProvider(base_url=url, api_key="-"), settings=ModelSettings(temperature=0)
    )


def _model(url: str) -> OpenAIChatModel:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key="-"), settings=ModelSettings(**GREEDY))


def _loop(url: str, model: MakeModel) -> str:
    answer: str = Agent(model(url), tools=[weather]).run_sync(WEATHER_QUESTION).output
    assert "22" in answer, answer
    return answer


def _stream(url: str, model: MakeModel) -> str:
    async def run() -> str:
        async with Agent(model(url), tools=[weather]).run_stream(WEATHER_QUESTION) as result:
            parts = [str(text) async for text in result.stream_text()]
        return parts[-1]

    answer = asyncio.run(run())
    assert "22" in answer, answer
    return answer


def _output(url: str) -> Person:
    person = Agent(_model(url), output_type=Person, retries=0).run_sync(PERSON_QUESTION).output
    assert isinstance(person, Person)
    return person


def _native_output(url: str) -> Person:
    person = Agent(_model(url), output_type=NativeOutput(Person), retries=0).run_sync(PERSON_QUESTION).output
    assert isinstance(person, Person)
    return person


CHECKS: Checks = {
    "tool loop": partial(_loop, model=_model),
    "tool loop, responses": partial(_loop, model=_responses),
    "tool loop as a stream": partial(_stream, model=_model),
    "tool loop as a stream, responses": partial(_stream, model=_responses),
    "`output_type` as a tool": _output,
    "`output_type=NativeOutput`": _native_output,
}
