"""Checks of LangChain against the server: streams, `with_structured_output`, and `bind_tools`.

The methods of `with_structured_output` are those that send the schema; `bind_tools` is checked with a tool's result.
They are tried over chats and over /v1/responses. Embeddings need `check_embedding_ctx_length=False`; without it texts
are sent as tokens of OpenAI's vocabulary.
"""

from __future__ import annotations

from functools import partial

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tools.clients.questions import (
    GREEDY,
    MODEL,
    Checks,
    Person,
    answers_france,
    answers_weather,
    calls_weather,
    gives_person,
    weather,
)

_METHODS = ("json_schema", "function_calling")


def _chat(url: str, responses: bool = False) -> ChatOpenAI:
    fields = {"temperature": 0, "use_responses_api": True} if responses else GREEDY
    return ChatOpenAI(base_url=url, api_key="-", model=MODEL, max_retries=0, **fields)


def _structured(url: str, question: str, method: str, responses: bool = False) -> object:
    return _chat(url, responses).with_structured_output(Person, method=method).invoke(question)


def _tools(url: str, text: str, responses: bool = False) -> str:
    chat = _chat(url, responses).bind_tools([weather])
    question = HumanMessage(text)
    call = chat.invoke([question])
    assert isinstance(call, AIMessage)
    (asked,) = call.tool_calls
    result = ToolMessage(weather(**asked["args"]), tool_call_id=asked["id"])
    return str(chat.invoke([question, call, result]).text)


def _required(url: str, question: str) -> object:
    (asked,) = _chat(url).bind_tools([weather], tool_choice="any").invoke(question).tool_calls
    return asked["args"]


def _stream(url: str, question: str, responses: bool = False) -> str:
    return "".join(str(part.text) for part in _chat(url, responses).stream(question))


def _embeddings(url: str) -> int:
    embeddings = OpenAIEmbeddings(base_url=url, api_key="-", model=MODEL, check_embedding_ctx_length=False)
    return len(embeddings.embed_documents(["One", "Two"]))


CHECKS: Checks = {
    "`stream`": answers_france(_stream),
    "`stream`, responses": answers_france(partial(_stream, responses=True)),
    "`bind_tools` and the result, responses": answers_weather(partial(_tools, responses=True)),
    "`with_structured_output`, responses": gives_person(partial(_structured, method="json_schema", responses=True)),
    "`OpenAIEmbeddings`": _embeddings,
    **{f"`with_structured_output`, {each}": gives_person(partial(_structured, method=each)) for each in _METHODS},
    "`bind_tools` and the result": answers_weather(_tools),
    "`bind_tools(tool_choice='any')`": calls_weather(_required),
}
