"""LiteLLM: the same model over its providers of OpenAI, vLLM, Anthropic and Ollama."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it is downloaded
import litellm

from tools.clients.questions import GREEDY, MODEL, PERSON_QUESTION, WEATHER_QUESTION, WEATHER_TOOL, Checks, Person

litellm.drop_params = True  # drop OpenAI's fields that another provider does not know


def _ask(url: str, provider: str = "openai", question: str = "What is the capital of France?", **fields: Any) -> Any:  # noqa: ANN401
    root = url.removesuffix("/v1")
    base = url if provider in ("openai", "hosted_vllm", "text-completion-openai") else root
    messages = [{"role": "user", "content": question}]
    fixed = {"temperature": 0} if provider == "ollama_chat" else GREEDY  # it makes a repeat_penalty of the penalties
    return litellm.completion(
        model=f"{provider}/{MODEL}", api_base=base, api_key="-", messages=messages, num_retries=0, **fixed, **fields
    )


def _text(url: str, provider: str) -> str:
    content: str = _ask(url, provider, max_tokens=30).choices[0].message.content
    assert "Paris" in content, content
    return content


def _stream(url: str, provider: str) -> str:
    chunks = _ask(url, provider, stream=True, max_tokens=30)
    content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "Paris" in content, content
    return content


def _tool(url: str, provider: str) -> object:
    message = _ask(url, provider, WEATHER_QUESTION, tools=[WEATHER_TOOL], max_tokens=60).choices[0].message
    (call,) = message.tool_calls
    return json.loads(call.function.arguments)


def _schema(url: str) -> Person:
    answer = _ask(url, question=PERSON_QUESTION, response_format=Person)
    return Person.model_validate_json(answer.choices[0].message.content)


def _embedding(url: str) -> int:
    answer = litellm.embedding(model=f"openai/{MODEL}", api_base=url, api_key="-", input=["One", "Two"])
    return len(answer.data)


def _responses(url: str) -> object:
    answer = litellm.responses(model=f"openai/{MODEL}", api_base=url, api_key="-", input="Hello", max_output_tokens=20)
    return answer.output[-1].content[0].text


_PROVIDERS = ("openai", "hosted_vllm", "anthropic", "ollama_chat")

CHECKS: Checks = {
    **{f"`{provider}/`": partial(_text, provider=provider) for provider in _PROVIDERS},
    **{f"`{provider}/`, stream": partial(_stream, provider=provider) for provider in _PROVIDERS},
    **{f"`{provider}/`, tools": partial(_tool, provider=provider) for provider in _PROVIDERS},
    "`response_format` of a pydantic model": _schema,
    "`embedding`": _embedding,
    "`responses`": _responses,
}
