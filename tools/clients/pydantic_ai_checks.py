"""pydantic-ai: agents whose answer is a pydantic model, and the loop of tool calls."""

from __future__ import annotations

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tools.clients.questions import GREEDY, MODEL, PERSON_QUESTION, WEATHER_QUESTION, Checks, Person, weather


def _model(url: str) -> OpenAIChatModel:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key="-"), settings=ModelSettings(**GREEDY))


def _loop(url: str) -> str:
    answer: str = Agent(_model(url), tools=[weather]).run_sync(WEATHER_QUESTION).output
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
    "tool loop": _loop,
    "`output_type` as a tool": _output,
    "`output_type=NativeOutput`": _native_output,
}
