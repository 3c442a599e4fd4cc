"""Checks of LlamaIndex against the server: `OpenAILike` for texts, streams and structured answers, and in an agent."""

from __future__ import annotations

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike

from tools.clients.questions import MODEL, Checks, Person, answers_france, answers_weather, gives_person, weather

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


def _complete(url: str, question: str) -> object:
    return _llm(url, is_chat=False).complete(f"User: {question}\n\nAssistant:", stop=["\n\n"])


def _stream(url: str, question: str) -> str:
    return "".join(part.delta or "" for part in _llm(url).stream_chat([ChatMessage(question)]))


def _structured(url: str, question: str) -> object:
    return _llm(url).structured_predict(Person, PromptTemplate("{text}"), text=question)


def _agent(url: str, question: str) -> str:
    async def run() -> str:
        return str(await FunctionAgent(tools=[weather], llm=_llm(url)).run(question))

    return asyncio.run(run())


CHECKS: Checks = {
    "`complete`": answers_france(_complete),
    "`stream_chat`": answers_france(_stream),
    "`structured_predict`": gives_person(_structured),
    "`FunctionAgent`": answers_weather(_agent),
}
