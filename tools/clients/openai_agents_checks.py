"""Checks of openai-agents against the server: tool calls, typed output and stored conversations.

The loop of tool calls runs over /v1/responses and over chats.
"""

from __future__ import annotations

import asyncio
from functools import partial

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from tools.clients.questions import (
    FRANCE_QUESTION,
    MODEL,
    WEATHER_QUESTION,
    Checks,
    Person,
    answers_weather,
    gives_person,
    weather,
)

set_tracing_disabled(True)
_MODELS = {"responses": OpenAIResponsesModel, "chats": OpenAIChatCompletionsModel}
_SETTINGS = ModelSettings(temperature=0, extra_body={"presence_penalty": 0, "frequency_penalty": 0}, max_tokens=80)


def _agent(url: str, api: str, **fields: object) -> Agent:
    model = _MODELS[api](model=MODEL, openai_client=AsyncOpenAI(base_url=url, api_key="-"))
    return Agent(name="Agent", model=model, model_settings=_SETTINGS, **fields)


def _loop(url: str, question: str, api: str) -> object:
    agent = _agent(url, api, tools=[function_tool(weather)])
    return Runner.run_sync(agent, question).final_output


def _stream(url: str, question: str, api: str) -> str:
    async def run() -> str:
        result = Runner.run_streamed(_agent(url, api, tools=[function_tool(weather)]), question)
        kinds = {event.type async for event in result.stream_events()}
        assert {"raw_response_event", "run_item_stream_event"} <= kinds, kinds
        return str(result.final_output)

    return asyncio.run(run())


def _typed(url: str, question: str, api: str) -> object:
    return Runner.run_sync(_agent(url, api, output_type=Person), question).final_output


def _conversation(url: str) -> int:
    async def run() -> int:
        client = AsyncOpenAI(base_url=url, api_key="-")
        session = OpenAIConversationsSession(openai_client=client)
        for question in (FRANCE_QUESTION, WEATHER_QUESTION):
            await Runner.run(_agent(url, "responses", tools=[function_tool(weather)]), question, session=session)
        items = await session.get_items()
        await session.clear_session()
        return len(items)

    count = asyncio.run(run())
    assert count == 6, count
    return count


CHECKS: Checks = {
    **{f"tool loop, {api}": answers_weather(partial(_loop, api=api)) for api in _MODELS},
    **{f"tool loop as a stream, {api}": answers_weather(partial(_stream, api=api)) for api in _MODELS},
    **{f"`output_type`, {api}": gives_person(partial(_typed, api=api)) for api in _MODELS},
    "`OpenAIConversationsSession`": _conversation,
}
