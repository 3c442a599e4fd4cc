"""Measure how often a server's model calls the right tool with the right arguments. Uses the official openai client.

    rnn-engine serve & python -m tools.demo_model.tool_calls --url http://127.0.0.1:65530

The calls are held out of the demo model's training. They are requested with `tools`, so that the server's chat template
and grammar take part, and decoded greedily. A call is right if its name and arguments are exact. Other requests send
the result of a call; their answer is right if it repeats all parts of the result.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from openai import OpenAI

from tools.demo_model.corpus.calls import SIMPLE_TOOLS
from tools.demo_model.corpus.mixture import held_out
from tools.demo_model.evaluate import CLIENTS, GREEDY, HEAD, Figure

_NUMBERS = {"minutes"}  # the arguments that are numbers
_SKIES = ("sunny", "cloudy", "windy", "rain", "snow")


Create: TypeAlias = Callable[..., Any]
"""The client's `chat.completions.create`."""


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: a question, the tools that it offers, and the right call."""

    question: str
    tools: Sequence[dict[str, Any]]
    name: str
    arguments: dict[str, Any]


def make_cases(count: int) -> list[Case]:
    """Return `count` cases from held-out dialogues."""
    cases = []
    for dialogue in held_out("tool_call", count):
        call = json.loads(dialogue.answer)
        offered = (dialogue.system or "").removeprefix("Tools: ").split(", ")
        tools = [_describe(signature.partition("(")[0]) for signature in offered]
        cases.append(Case(dialogue.turns[-1].question, tools, call["name"], call["arguments"]))
    return cases


def _describe(name: str) -> dict[str, Any]:
    [argument] = next(offer.arguments for offer in SIMPLE_TOOLS if offer.name == name)
    properties = {argument: {"type": "integer" if argument in _NUMBERS else "string"}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def try_call(create: Create, case: Case, stream: bool) -> bool:
    """Return True if the model makes the right call and no other."""
    messages = [{"role": "user", "content": case.question}]
    if not stream:
        answer = create(messages=messages, tools=case.tools, **GREEDY)
        calls = [each.function for each in answer.choices[0].message.tool_calls or ()]
        return [(call.name, json.loads(call.arguments)) for call in calls] == [(case.name, case.arguments)]
    names, arguments = [], ""
    for chunk in create(messages=messages, tools=case.tools, stream=True, **GREEDY):
        for piece in chunk.choices[0].delta.tool_calls or ():
            names += [piece.function.name] if piece.id else []
            arguments += piece.function.arguments or ""
    return names == [case.name] and bool(json.loads(arguments) == case.arguments)


def try_result(create: Create, number: int) -> bool:
    """Return True if the model's answer to the result of a call repeats all parts of that result."""
    chance = random.Random(number)
    city, sky, degrees = chance.choice(("Paris", "Rome", "Oslo")), chance.choice(_SKIES), chance.randint(1, 35)
    function = {"name": "weather", "arguments": json.dumps({"city": city})}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": f"What is the weather in {city}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps({"temperature": degrees, "sky": sky})},
    ]
    answer = create(messages=messages, tools=[_describe("weather")], **GREEDY)
    said = answer.choices[0].message.content or ""
    return all(str(part) in said for part in (city, sky, degrees))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:65530", help="the server's root")
    parser.add_argument("--count", type=int, default=100, help="how many calls")
    options = parser.parse_args()
    create = OpenAI(base_url=f"{options.url.rstrip('/')}/v1", api_key="-").chat.completions.create
    cases = make_cases(options.count)
    print(HEAD, flush=True)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for stream in (False, True):
            right = sum(pool.map(lambda case, stream=stream: try_call(create, case, stream), cases))
            print(Figure(f"calls{', streamed' if stream else ''}", right, len(cases)), flush=True)
        right = sum(pool.map(lambda number: try_result(create, number), range(options.count)))
        print(Figure("answers to results", right, options.count), flush=True)


if __name__ == "__main__":
    main()
