"""LangChain: streams, `with_structured_output` by methods that send the schema, and `bind_tools` with a result.

They are tried over chats and over /v1/responses. Embeddings need `check_embedding_ctx_length=False`; without it texts
are sent as tokens of OpenAI's vocabulary.
"""

from __future__ import annotations

from functools import partial

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tools.clients.questions import GREEDY, MODEL, PERSON_QUESTION, WEATHER_QUESTION, Checks, Person, weather

_METHODS = ("json_schema", "function_calling")


def _chat(url: str, *, responses: bool = False) -> ChatOpenAI:
    fields = {"temperature": 0, "use_responses_api": True} if responses else GREEDY
    return ChatOpenAI(base_url=url, api_key="-", model=MODEL, max_retries=0, **fields)


def _structured(url: str, method: str, *, responses: bool = False) -> Person:
    person = _chat(url, responses=responses).with_structured_output(Person, method=method).invoke(PERSON_QUESTION)
    assert isinstance(person, Person)
    return person


def _tools(url: str, *, responses: bool = False) -> str:
    chat = _chat(url, responses=responses).bind_tools([weather])
    question = HumanMessage(WEATHER_QUESTION)
    call = chat.invoke([question])
    assert isinstance(call, AIMessage)
    (asked,) = call.tool_calls
    result = ToolMessage(weather(**asked["args"]), tool_call_id=asked["id"])
    answer = str(chat.invoke([question, call, result]).text)
    assert "22" in answer, answer
    return answer


def _required(url: str) -> object:
    (asked,) = _chat(url).bind_tools([weather], tool_choice="any").invoke(WEATHER_QUESTION).tool_calls
    return asked["args"]


def _stream(url: str, *, responses: bool = False) -> str:
    parts = _chat(url, responses=responses).stream("What is the capital of France?")
    answer = "".join(str(part.text) for part in parts)
    assert "Paris" in answer, answer
    return answer


def _embeddings(url: str) -> int:
    embeddings = OpenAIEmbeddings(base_url=url, api_key="-", model=MODEL, check_embedding_ctx_length=False)
    return len(embeddings.embed_documents(["One", "Two"]))


CHECKS: Checks = {
    "`stream`": _stream,
    "`stream`, responses": partial(_stream, responses=True),
    "`bind_tools` and the result, responses": partial(_tools, responses=True),
    "`with_structured_output`, responses": partial(_structured, method="json_schema", responses=True),
    "`OpenAIEmbeddings`": _embeddings,
    **{f"`with_structured_output`, {method}": partial(_structured, method=method) for method in _METHODS},
    "`bind_tools` and the result": _tools,
    "`bind_tools(tool_choice='any')`": _required,
}
