"""Checks of AutoGen against the server: `AssistantAgent` with a tool and with a pydantic model."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from tools.clients.questions import (
    GREEDY,
    MODEL,
    Checks,
    Person,
    answers_france,
    answers_weather,
    gives_person,
    weather,
)

_INFO = ModelInfo(vision=False, function_calling=True, json_output=True, structured_output=True, family="unknown")


def _client(url: str) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(model=MODEL, base_url=url, api_key="-", model_info=_INFO, **GREEDY)


def _agent(url: str, question: str, **fields: Any) -> Any:  # noqa: ANN401
    agent = AssistantAgent("agent", _client(url), system_message=None, **fields)
    return asyncio.run(agent.run(task=question)).messages[-1].content


CHECKS: Checks = {
    "`AssistantAgent`": answers_france(_agent),
    "`AssistantAgent` with a tool": answers_weather(partial(_agent, tools=[weather], max_tool_iterations=3)),
    "`AssistantAgent`, `output_content_type`": gives_person(partial(_agent, output_content_type=Person)),
}
