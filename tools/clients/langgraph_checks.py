"""Checks of LangGraph against the server: an agent with a tool and a memory, whole and streamed."""

from __future__ import annotations

from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent

from tools.clients.questions import FRANCE_QUESTION, GREEDY, MODEL, Checks, answers_weather, weather

_THREAD: Any = {"configurable": {"thread_id": "1"}}


def _agent(url: str) -> Any:  # noqa: ANN401
    return create_react_agent(
        ChatOpenAI(base_url=url, api_key="-", model=MODEL, **GREEDY), [weather], checkpointer=InMemorySaver()
    )


def _invoke(url: str, question: str) -> str:
    agent = _agent(url)
    for asked in (FRANCE_QUESTION, question):
        said = agent.invoke({"messages": asked}, _THREAD)["messages"]
    assert [each.type for each in said] == ["human", "ai", "human", "ai", "tool", "ai"], said
    return str(said[-1].text)


def _stream(url: str, question: str) -> str:
    parts = _agent(url).stream({"messages": question}, _THREAD, stream_mode="messages")
    return "".join(str(part.text) for part, _ in parts if part.type == "AIMessageChunk")


CHECKS: Checks = {
    "an agent with a tool and a memory": answers_weather(_invoke),
    "the agent's stream": answers_weather(_stream),
}
