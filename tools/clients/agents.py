"""Checks of packages for agents, which call tools in a loop: a function for each."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from tools.clients.checks import (
    FRANCE_QUESTION,
    GREEDY,
    MODEL,
    WEATHER_QUESTION,
    Checks,
    Person,
    answers_weather,
    gives_person,
    weather,
)


def langgraph() -> Checks:
    """Return the checks of an agent with a tool and a memory, whole and streamed."""
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.prebuilt import create_react_agent

    thread = {"configurable": {"thread_id": "1"}}

    def make_agent(url: str) -> Any:  # noqa: ANN401
        chat = ChatOpenAI(base_url=url, api_key="-", model=MODEL, **GREEDY)
        return create_react_agent(chat, [weather], checkpointer=InMemorySaver())

    def invoke(url: str, question: str) -> str:
        agent = make_agent(url)
        for asked in (FRANCE_QUESTION, question):
            said = agent.invoke({"messages": asked}, thread)["messages"]
        assert [each.type for each in said] == ["human", "ai", "human", "ai", "tool", "ai"], said
        return str(said[-1].text)

    def stream(url: str, question: str) -> str:
        parts = make_agent(url).stream({"messages": question}, thread, stream_mode="messages")
        return "".join(str(part.text) for part, _ in parts if part.type == "AIMessageChunk")

    return {"an agent with a tool and a memory": answers_weather(invoke), "the agent's stream": answers_weather(stream)}


def openai_agents() -> Checks:
    """Return the checks of tool loops over /v1/responses and over chats, typed output and stored conversations."""
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

    set_tracing_disabled(True)
    models = {"responses": OpenAIResponsesModel, "chats": OpenAIChatCompletionsModel}
    without_penalties = {"presence_penalty": 0, "frequency_penalty": 0}
    settings = ModelSettings(temperature=0, extra_body=without_penalties, max_tokens=80)

    def make_agent(url: str, api: str, **fields: object) -> Any:  # noqa: ANN401
        model = models[api](model=MODEL, openai_client=AsyncOpenAI(base_url=url, api_key="-"))
        return Agent(name="Agent", model=model, model_settings=settings, **fields)

    def loop(url: str, question: str, api: str) -> object:
        return Runner.run_sync(make_agent(url, api, tools=[function_tool(weather)]), question).final_output

    def stream(url: str, question: str, api: str) -> str:
        async def run() -> str:
            result = Runner.run_streamed(make_agent(url, api, tools=[function_tool(weather)]), question)
            kinds = {event.type async for event in result.stream_events()}
            assert {"raw_response_event", "run_item_stream_event"} <= kinds, kinds
            return str(result.final_output)

        return asyncio.run(run())

    def typed(url: str, question: str, api: str) -> object:
        return Runner.run_sync(make_agent(url, api, output_type=Person), question).final_output

    def conversation(url: str) -> int:
        async def run() -> int:
            session = OpenAIConversationsSession(openai_client=AsyncOpenAI(base_url=url, api_key="-"))
            for question in (FRANCE_QUESTION, WEATHER_QUESTION):
                agent = make_agent(url, "responses", tools=[function_tool(weather)])
                await Runner.run(agent, question, session=session)
            items = await session.get_items()
            await session.clear_session()
            return len(items)

        count = asyncio.run(run())
        assert count == 6, count
        return count

    return {
        **{f"tool loop, {api}": answers_weather(partial(loop, api=api)) for api in models},
        **{f"tool loop as a stream, {api}": answers_weather(partial(stream, api=api)) for api in models},
        **{f"`output_type`, {api}": gives_person(partial(typed, api=api)) for api in models},
        "`OpenAIConversationsSession`": conversation,
    }


def pydantic_ai() -> Checks:
    """Return the checks of agents whose answer is a pydantic model, and of the loop of tool calls."""
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.settings import ModelSettings

    def make_agent(url: str, responses: bool = False, **fields: Any) -> Any:  # noqa: ANN401
        provider = OpenAIProvider(base_url=url, api_key="-")
        kind, settings = (OpenAIResponsesModel, {"temperature": 0}) if responses else (OpenAIChatModel, GREEDY)
        return Agent(kind(MODEL, provider=provider, settings=ModelSettings(**settings)), **fields)

    def loop(url: str, question: str, responses: bool = False) -> object:
        return make_agent(url, responses, tools=[weather]).run_sync(question).output

    def stream(url: str, question: str, responses: bool = False) -> str:
        async def run() -> str:
            async with make_agent(url, responses, tools=[weather]).run_stream(question) as result:
                return [str(text) async for text in result.stream_text()][-1]

        return asyncio.run(run())

    def output(url: str, question: str, output_type: object = Person) -> object:
        return make_agent(url, output_type=output_type, retries=0).run_sync(question).output

    return {
        "tool loop": answers_weather(loop),
        "tool loop, responses": answers_weather(partial(loop, responses=True)),
        "tool loop as a stream": answers_weather(stream),
        "tool loop as a stream, responses": answers_weather(partial(stream, responses=True)),
        "`output_type` as a tool": gives_person(output),
        "`output_type=NativeOutput`": gives_person(partial(output, output_type=NativeOutput(Person))),
    }
