"""LangChain: `with_structured_output` where the server is told the schema, `bind_tools`, and a result sent back."""

from __future__ import annotations

from functools import partial

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tools.clients.questions import GREEDY, MODEL, PERSON_QUESTION, WEATHER_QUESTION, Checks, Person, weather

_METHODS = ("json_schema", "function_calling")


def _chat(url: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=url, api_key="-", model=MODEL, max_retries=0, **GREEDY)


def _structured(url: str, method: str) -> Person:
    person = _chat(url).with_structured_output(Person, method=method).invoke(PERSON_QUESTION)
    assert isinstance(person, Person)
    return person


def _tools(url: str) -> str:
    chat = _chat(url).bind_tools([weather])
    question = HumanMessage(WEATHER_QUESTION)
    call = chat.invoke([question])
    assert isinstance(call, AIMessage)
    (asked,) = call.tool_calls
    result = ToolMessage(weather(**asked["args"]), tool_call_id=asked["id"])
    answer = str(chat.invoke([question, call, result]).content)
    assert "22" in answer, answer
    return answer


def _required(url: str) -> object:
    (asked,) = _chat(url).bind_tools([weather], tool_choice="any").invoke(WEATHER_QUESTION).tool_calls
    return asked["args"]


CHECKS: Checks = {
    **{f"`with_structured_output`, {method}": partial(_structured, method=method) for method in _METHODS},
    "`bind_tools` and the result": _tools,
    "`bind_tools(tool_choice='any')`": _required,
}
