"""Checks of crewAI against the server: `LLM.call` with a pydantic model and a tool, and streamed."""

from __future__ import annotations

import os

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["CREWAI_TRACING_ENABLED"] = "true"
from crewai import LLM

from tools.clients.questions import (
    MODEL,
    WEATHER_TOOL,
    Checks,
    Person,
    answers_france,
    calls_weather,
    gives_person,
    weather,
)


def _llm(url: str, stream: bool = False) -> LLM:
    return LLM(f"openai/{MODEL}", base_url=url, api_key="-", temperature=0, stream=stream)


def _tool(url: str, question: str) -> object:
    return _llm(url).call(question, tools=[WEATHER_TOOL], available_functions={"weather": weather})


CHECKS: Checks = {
    "`LLM.call`": answers_france(lambda url, question: _llm(url).call(question)),
    "`LLM.call`, stream": answers_france(lambda url, question: _llm(url, stream=True).call(question)),
    "`LLM.call`, `response_model`": gives_person(lambda url, question: _llm(url).call(question, response_model=Person)),
    "`LLM.call` with a tool": calls_weather(_tool),
}
