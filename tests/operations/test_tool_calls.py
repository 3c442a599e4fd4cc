"""Every call that an answer begins is a call of a tool, whatever the tools are called and however calls are written."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rnn_engine.chat_template.answer import AnswerForm, AnswerPart, AnswerReader, Piece
from rnn_engine.chat_template.tools import Tool, ToolFormats
from rnn_engine.demo import model_path
from rnn_engine.grammar import Vocabulary
from rnn_engine.grammar.compiled import compile_grammar
from rnn_engine.operations.chat_prompt import tool_grammar
from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer
from tests.support.grammars import byte_vocabulary, finish_shortly

_LETTERS = string.ascii_letters + string.digits + "_-"
_NAMES = [
    *("get_current_weather", "weather", "w-weather", "calculator", "Bash", "Read", "read", "read_file", "name", "n"),
    *("mcp__files__read", "mcp__files__read_all", "WebFetch", "web-search", "search2", "0", "-", "_", "arguments"),
    "a" * 64,
]
_CALL_BEGINS = '{"name": "'  # in a format without an opening text
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["bytes", "demo"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    """Return the vocabulary of single bytes, or that of the demo model, whose tokens span the parts of a call."""
    if request.param == "bytes":
        return byte_vocabulary()
    tokenizer = HuggingFaceTokenizer(Path(model_path()).with_name("tokenizer.json"))
    return Vocabulary.of(tokenizer, tokenizer.size)


def groups(names: Sequence[str], count: int) -> Iterator[Sequence[str]]:
    """Yield groups of `count` different names that together have all of `names`."""
    for start in range(0, len(names), count):
        yield [names[(start + i) % len(names)] for i in range(count)]


def read(text: str, reader: AnswerReader, chance: random.Random) -> Sequence[Piece]:
    """Return the pieces of an answer that arrives in parts of random lengths."""
    pieces: list[Piece] = []
    while text:
        length = chance.randint(1, 8)
        pieces += reader.feed(text[:length])
        text = text[length:]
    return [*pieces, *reader.finish()]


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("format_", list(ToolFormats))
def test_a_call_that_is_begun_is_one_of_a_tool(format_: ToolFormats, count: int, vocabulary: Vocabulary) -> None:
    chance, written = random.Random(count), format_.value
    drawn = ["".join(chance.choices(_LETTERS, k=chance.randint(1, 24))) for _ in range(5)]
    names = chance.sample(_NAMES, len(_NAMES)) + drawn
    for group in groups(names, count):
        tools = [Tool(name, "", _PARAMETERS, strict=True) for name in group]
        grammar = tool_grammar(written, tools, required=False, parallel=True)
        begun = f"Let me look.\n{written.opening or _CALL_BEGINS}"
        text = begun + finish_shortly(compile_grammar(grammar, vocabulary).start(), begun, chance, vocabulary)
        pieces = read(text, AnswerReader(AnswerForm(tools=written, names=group)), chance)
        [called] = [piece.text for piece in pieces if piece.part is AnswerPart.CALL]
        assert called in group
        arguments = "".join(piece.text for piece in pieces if piece.part is AnswerPart.ARGUMENTS)
        assert json.loads(arguments)["city"] in ("Paris", "Oslo")
