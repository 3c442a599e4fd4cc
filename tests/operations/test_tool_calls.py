"""Every call that an answer begins is a call of a tool, whatever the tools are called and however calls are written."""

from __future__ import annotations

import json
import random
import string

import pytest

from rnn_engine.chat_template.answer import AnswerForm, AnswerPart, AnswerReader
from rnn_engine.chat_template.messages import Tool, ToolFormats
from rnn_engine.grammar.compiled import compile_grammar
from rnn_engine.operations.chat_prompt import tool_grammar
from tests.support.grammars import byte_vocabulary, finish_shortly

_NAMES = ["get_current_weather", "Bash", "w-weather", "calculator", "name", "n"]
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def random_names(chance: random.Random, count: int) -> list[str]:
    letters = string.ascii_letters + string.digits + "_-"
    return ["".join(chance.choices(letters, k=chance.randint(1, 24))) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("format_", list(ToolFormats))
@pytest.mark.parametrize("seed", range(4))
def test_a_call_that_is_begun_is_one_of_a_tool(format_: ToolFormats, count: int, seed: int) -> None:
    chance, written = random.Random(seed), format_.value
    names = chance.sample(_NAMES + random_names(chance, 20), count)
    tools = [Tool(name, "", _PARAMETERS, strict=True) for name in names]
    grammar = tool_grammar(written, tools, required=False, parallel=True)
    begun = f'Let me look.\n{written.opening}\n{{"name": "' if written.opening else 'Let me look.\n{"name": "'
    text = begun + finish_shortly(compile_grammar(grammar, byte_vocabulary()).start(), begun, chance)
    reader = AnswerReader(AnswerForm(tools=written, names=names))
    pieces = [*reader.feed(text), *reader.finish()]
    [called] = [piece.text for piece in pieces if piece.part is AnswerPart.CALL]
    assert called in names
    arguments = "".join(piece.text for piece in pieces if piece.part is AnswerPart.ARGUMENTS)
    assert json.loads(arguments)["city"] in ("Paris", "Oslo")
