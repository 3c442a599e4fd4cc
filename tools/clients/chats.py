"""Checks of packages that ask models: texts, streams, structured answers and calls of tools. A function for each."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tools.clients.checks import (
    GREEDY,
    MODEL,
    WEATHER_TOOL,
    Ask,
    Checks,
    Person,
    answers_france,
    answers_weather,
    calls_weather,
    gives_person,
    root_of,
    weather,
)

_LLM_FUNCTION = """
def weather(city: str) -> str:
    "Return the weather in a city."
    return '{"temperature": 22, "sky": "sunny", "city": "' + city + '"}'
"""


def instructor() -> Checks:
    """Return the checks of the modes that send the schema of a pydantic model.

    `Mode.JSON` and `Mode.MD_JSON` only put it into the prompt, so they test the model and are not tried.
    """
    import instructor
    from openai import OpenAI

    def ask(url: str, question: str, mode: str) -> object:
        client = instructor.from_openai(OpenAI(base_url=url, api_key="-"), mode=instructor.Mode[mode])
        return client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            response_model=Person,
            max_retries=0,
            **({"temperature": 0} if mode == "RESPONSES_TOOLS" else GREEDY),
        )

    modes = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS")
    return {f"`Mode.{mode}`": gives_person(partial(ask, mode=mode)) for mode in modes}


def langchain() -> Checks:
    """Return the checks of streams, `with_structured_output` and `bind_tools`, over chats and over /v1/responses.

    The methods of `with_structured_output` are those that send the schema; `bind_tools` is checked with a tool's
    result. Embeddings need `check_embedding_ctx_length=False`; without it texts are sent as tokens of OpenAI's
    vocabulary.
    """
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    def make_chat(url: str, responses: bool = False) -> Any:  # noqa: ANN401
        fields = {"temperature": 0, "use_responses_api": True} if responses else GREEDY
        return ChatOpenAI(base_url=url, api_key="-", model=MODEL, max_retries=0, **fields)

    def structured(url: str, question: str, method: str, responses: bool = False) -> object:
        return make_chat(url, responses).with_structured_output(Person, method=method).invoke(question)

    def tools(url: str, text: str, responses: bool = False) -> str:
        chat = make_chat(url, responses).bind_tools([weather])
        question = HumanMessage(text)
        call = chat.invoke([question])
        (asked,) = call.tool_calls
        result = ToolMessage(weather(**asked["args"]), tool_call_id=asked["id"])
        return str(chat.invoke([question, call, result]).text)

    def required(url: str, question: str) -> object:
        (asked,) = make_chat(url).bind_tools([weather], tool_choice="any").invoke(question).tool_calls
        return asked["args"]

    def stream(url: str, question: str, responses: bool = False) -> str:
        return "".join(str(part.text) for part in make_chat(url, responses).stream(question))

    def embeddings(url: str) -> int:
        made = OpenAIEmbeddings(base_url=url, api_key="-", model=MODEL, check_embedding_ctx_length=False)
        return len(made.embed_documents(["One", "Two"]))

    methods = ("json_schema", "function_calling")
    return {
        "`stream`": answers_france(stream),
        "`stream`, responses": answers_france(partial(stream, responses=True)),
        "`bind_tools` and the result, responses": answers_weather(partial(tools, responses=True)),
        "`with_structured_output`, responses": gives_person(partial(structured, method="json_schema", responses=True)),
        "`OpenAIEmbeddings`": embeddings,
        **{f"`with_structured_output`, {each}": gives_person(partial(structured, method=each)) for each in methods},
        "`bind_tools` and the result": answers_weather(tools),
        "`bind_tools(tool_choice='any')`": calls_weather(required),
    }


def litellm() -> Checks:
    """Return the checks of the same model through LiteLLM's providers for OpenAI, vLLM, Anthropic and Ollama."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it is fetched
    import litellm

    litellm.drop_params = True  # the fields of OpenAI that another provider does not know

    def ask(url: str, question: str, provider: str, **fields: Any) -> Any:  # noqa: ANN401
        return litellm.completion(
            model=f"{provider}/{MODEL}",
            api_base=url if provider in ("openai", "hosted_vllm") else root_of(url),
            api_key="-",
            messages=[{"role": "user", "content": question}],
            num_retries=0,
            # ollama_chat makes a repeat_penalty of the penalties.
            **({"temperature": 0} if provider == "ollama_chat" else GREEDY),
            **fields,
        )

    def text(url: str, question: str, provider: str, **fields: Any) -> object:  # noqa: ANN401
        return ask(url, question, provider, **fields).choices[0].message.content

    def stream(url: str, question: str, provider: str) -> str:
        chunks = ask(url, question, provider, stream=True, max_tokens=30)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    def tool(url: str, question: str, provider: str) -> object:
        (call,) = ask(url, question, provider, tools=[WEATHER_TOOL], max_tokens=60).choices[0].message.tool_calls
        return json.loads(call.function.arguments)

    providers = ("openai", "hosted_vllm", "anthropic", "ollama_chat")
    return {
        **{f"`{each}/`": answers_france(partial(text, provider=each, max_tokens=30)) for each in providers},
        **{f"`{each}/`, stream": answers_france(partial(stream, provider=each)) for each in providers},
        **{f"`{each}/`, tools": calls_weather(partial(tool, provider=each)) for each in providers},
        "`response_format` of a pydantic model": gives_person(partial(text, provider="openai", response_format=Person)),
    }


def llama_index() -> Checks:
    """Return the checks of `OpenAILike` for texts, streams and structured answers, and in an agent."""
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.llms import ChatMessage
    from llama_index.core.prompts import PromptTemplate
    from llama_index.llms.openai_like import OpenAILike

    def make_llm(url: str, *, is_chat: bool = True) -> OpenAILike:
        return OpenAILike(
            model=MODEL,
            api_base=url,
            api_key="-",
            temperature=0,
            max_retries=0,
            is_chat_model=is_chat,
            is_function_calling_model=is_chat,
            additional_kwargs={"presence_penalty": 0, "frequency_penalty": 0},
        )

    def complete(url: str, question: str) -> object:
        return make_llm(url, is_chat=False).complete(f"User: {question}\n\nAssistant:", stop=["\n\n"])

    def stream(url: str, question: str) -> str:
        return "".join(part.delta or "" for part in make_llm(url).stream_chat([ChatMessage(question)]))

    def structured(url: str, question: str) -> object:
        return make_llm(url).structured_predict(Person, PromptTemplate("{text}"), text=question)

    def agent(url: str, question: str) -> str:
        async def run() -> str:
            return str(await FunctionAgent(tools=[weather], llm=make_llm(url)).run(question))

        return asyncio.run(run())

    return {
        "`complete`": answers_france(complete),
        "`stream_chat`": answers_france(stream),
        "`structured_predict`": gives_person(structured),
        "`FunctionAgent`": answers_weather(agent),
    }


def llm() -> Checks:
    """Return the checks of the command `llm` with an OpenAI-compatible model: a stream, a schema and tools."""

    def ask(*options: str) -> Ask:
        return lambda url, question: run(url, question, *options)

    def run(url: str, question: str, *options: str) -> str:
        served = {"model_id": "served", "model_name": MODEL, "api_base": url}
        with tempfile.TemporaryDirectory() as folder:
            models = json.dumps([{**served, "supports_schema": True, "supports_tools": True}])  # JSON is YAML
            Path(folder, "extra-openai-models.yaml").write_text(models)
            return subprocess.run(
                [sys.executable, "-m", "llm", "prompt", "-m", "served", "-o", "temperature", "0", question, *options],
                env={**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "-"},
                capture_output=True,
                text=True,
                check=True,
                stdin=subprocess.DEVNULL,
            ).stdout

    return {
        "a stream": answers_france(ask()),
        "`--no-stream`": answers_france(ask("--no-stream")),
        "`--schema`": gives_person(ask("--schema", json.dumps(Person.model_json_schema()))),
        "`--functions`": answers_weather(ask("--functions", _LLM_FUNCTION)),
    }


def mistralai() -> Checks:
    """Return the checks of streams, embeddings and models of Mistral's package."""
    from mistralai.client import Mistral

    def make_client(url: str) -> Any:  # noqa: ANN401
        return Mistral(api_key="-", server_url=root_of(url))

    def stream(url: str, question: str) -> str:
        events = make_client(url).chat.stream(model=MODEL, messages=[{"role": "user", "content": question}])
        return "".join(event.data.choices[0].delta.content or "" for event in events)

    return {
        "`chat.stream`": answers_france(stream),
        "`embeddings.create`": lambda url: len(make_client(url).embeddings.create(model=MODEL, inputs=["Hello"]).data),
        "`models.list`": lambda url: make_client(url).models.list().data[0].id,
    }
