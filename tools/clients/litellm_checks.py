"""Checks of LiteLLM against the server: the same model through its providers for OpenAI, vLLM, Anthropic and Ollama."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it is fetched
import litellm

from tools.clients.questions import (
    GREEDY,
    MODEL,
    WEATHER_TOOL,
    Checks,
    Person,
    answers_france,
    calls_weather,
    gives_person,
)

litellm.drop_params = True  # the fields of OpenAI that another provider does not know
_PROVIDERS = ("openai", "hosted_vllm", "anthropic", "ollama_chat")


def _ask(url: str, question: str, provider: str, **fields: Any) -> Any:  # noqa: ANN401
    base = url if provider in ("openai", "hosted_vllm") else url.removesuffix("/v1")
    messages = [{"role": "user", "content": question}]
    fixed = {"temperature": 0} if provider == "ollama_chat" else GREEDY  # it makes a repeat_penalty of the penalties
    return litellm.completion(
        model=f"{provider}/{MODEL}", api_base=base, api_key="-", messages=messages, num_retries=0, **fixed, **fields
    )


def _text(url: str, question: str, provider: str, **fields: Any) -> object:  # noqa: ANN401
    return _ask(url, question, provider, **fields).choices[0].message.content


def _stream(url: str, question: str, provider: str) -> str:
    chunks = _ask(url, question, provider, stream=True, max_tokens=30)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def _tool(url: str, question: str, provider: str) -> object:
    message = _ask(url, question, provider, tools=[WEATHER_TOOL], max_tokens=60).choices[0].message
    (call,) = message.tool_calls
    return json.loads(call.function.arguments)


def _embedding(url: str) -> int:
    answer = litellm.embedding(model=f"openai/{MODEL}", api_base=url, api_key="-", input=["One", "Two"])
    return len(answer.data)


def _responses(url: str) -> object:
    answer = litellm.responses(model=f"openai/{MODEL}", api_base=url, api_key="-", input="Hello", max_output_tokens=20)
    return answer.output[-1].content[0].text


CHECKS: Checks = {
    **{f"`{each}/`": answers_france(partial(_text, provider=each, max_tokens=30)) for each in _PROVIDERS},
    **{f"`{each}/`, stream": answers_france(partial(_stream, provider=each)) for each in _PROVIDERS},
    **{f"`{each}/`, tools": calls_weather(partial(_tool, provider=each)) for each in _PROVIDERS},
    "`response_format` of a pydantic model": gives_person(partial(_text, provider="openai", response_format=Person)),
    "`embedding`": _embedding,
    "`responses`": _responses,
}
