"""LlamaIndex: `OpenAILike` for texts, streams, structured answers and an agent with a tool."""

from __future__ import annotations

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike

from tools.clients.questions import MODEL, PERSON_QUESTION, WEATHER_QUESTION, Checks, Person, weather

_PENALTIES = {"presence_penalty": 0, "frequency_penalty": 0}


def _llm(url: str, *, is_chat: bool = True) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=url,
        api_key="-",
        temperature=0,
        max_retries=0,
        is_chat_model=is_chat,
        is_function_calling_model=is_chat,
        additional_kwargs=_PENALTIES,
    )


def _complete(url: str) -> str:
    answer = str(_llm(url, is_chat=False).complete("User: What is the capital of France?\n\nAssistant:", stop=["\n\n"]))
    assert "Paris" in answer, answer
    return answer


def _stream(url: str) -> str:
    parts = _llm(url).stream_chat([ChatMessage("What is the capital of France?")])
    answer = "".join(part.delta or "" for part in parts)
    assert "Paris" in answer, answer
    return answer


def _structured(url: str) -> Person:
    person = _llm(url).structured_predict(Person, PromptTemplate("{text}"), text=PERSON_QUESTION)
    assert isinstance(person, Person)
    return person


def _agent(url: str) -> str:
    async def run() -> str:
        return str(await FunctionAgent(tools=[weather], llm=_llm(url)).run(WEATHER_QUESTION))

    answer = asyncio.run(run())
    assert "22" in answer, answer
    return answer


CHECKS: Checks = {
    "`complete`": _complete,
    "`stream_chat`": _stream,
    "`structured_predict`": _structured,
    "`FunctionAgent`": _agent,
}
