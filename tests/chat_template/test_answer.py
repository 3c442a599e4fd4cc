"""An answer is divided into the same parts wherever its text is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.chat_template.answer import AnswerForm, AnswerPart, AnswerReader, Piece
from rnn_engine.chat_template.tools import ToolFormats

NAMES = ("a", "weather")
PLAIN = AnswerForm()
TAGGED = AnswerForm(tools=ToolFormats.TAGGED.value, names=NAMES)
BARE = AnswerForm(tools=ToolFormats.SIGNATURES.value, names=NAMES)
THINKING = AnswerForm(thought=True, bracket=True)

ANSWERS = [
    (PLAIN, "  Yes. <think>x</think> ", [("content", "Yes. <think>x</think> ")]),
    (PLAIN, "<think>\nHm\n</think>\n\nYes. ", [("reasoning", "Hm"), ("content", "Yes. ")]),
    (PLAIN, " <thin", [("content", "<thin")]),
    (PLAIN, '{"name": "weather", "arguments": {}}', [("content", '{"name": "weather", "arguments": {}}')]),
    (AnswerForm(divides_thoughts=False), " <think>a</think>b", [("content", "<think>a</think>b")]),
    (AnswerForm(strips=False), "  Yes", [("content", "  Yes")]),
    (THINKING, ">\nHm\n\nhm</think>\n\nYes.", [("reasoning", "Hm\n\nhm"), ("content", "Yes.")]),
    (THINKING, "Hm\n", [("reasoning", "Hm\n")]),
    (AnswerForm(thought=False, bracket=True), ">\n\nYes.", [("content", "Yes.")]),
    (
        TAGGED,
        ' Both.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Pa{\\"ris"}}\n</tool_call>\n'
        '<tool_call>{"name":"a","arguments":{}}</tool_call> Bye ',
        [
            ("content", "Both."),
            ("call", "weather"),
            ("arguments", r'{"city": "Pa{\"ris"}'),
            ("call", "a"),
            ("arguments", "{}"),
            ("content", "Bye "),
        ],
    ),
    (TAGGED, '<tool_call>{"name": "b", "arguments": {}}', [("content", '<tool_call>{"name": "b", "arguments": {}}')]),
    (TAGGED, '<tool_call>\n{"name": "a", "arguments": {"x": [1', [("call", "a"), ("arguments", '{"x": [1')]),
    *((TAGGED, f" Yes.\n{text}", [("content", "Yes.")]) for text in ("<t", "<tool_call>", '<tool_call>\n{"na')),
    *((TAGGED, f'<tool_call>\n{{"name": "{text}', []) for text in ("", "wea", 'a"', 'a", "arguments": ')),
    (
        TAGGED,
        '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "a", "arg',
        [("call", "a"), ("arguments", "{}")],
    ),
    (BARE, 'So: {"name": "wea', [("content", "So:")]),
    (BARE, 'So: {"na', [("content", 'So: {"na')]),
    *((replace(BARE, must_call=True), f" {text}", []) for text in ("{", '{"na', '{"name": "weather", "arg')),
    (replace(TAGGED, must_call=True), " <", []),
    (
        TAGGED,
        '<think>\n<tool_call>{"name": "a", "arguments": {}}\n</think>\nNo.',
        [("reasoning", '<tool_call>{"name": "a", "arguments": {}}'), ("content", "No.")],
    ),
    (TAGGED, "1 <\n", [("content", "1 <\n")]),
    (
        BARE,
        ' {"name": "weather", "arguments": {"city": "Paris"}}',
        [("call", "weather"), ("arguments", '{"city": "Paris"}')],
    ),
    (BARE, '{"name": "weatherman", "age": 3}', [("content", '{"name": "weatherman", "age": 3}')]),
    (BARE, '{"name": "a", "arguments": "text"}', [("content", '{"name": "a", "arguments": "text"}')]),
    (
        BARE,
        'So: {"x": 1} {"name": "a", "arguments": {}}',
        [("content", 'So: {"x": 1}'), ("call", "a"), ("arguments", "{}")],
    ),
]


def joined(pieces: list[Piece]) -> list[tuple[str, str]]:
    """Return the pieces without markup, joined by part."""
    found: list[tuple[str, str]] = []
    for piece in pieces:
        if piece.part is AnswerPart.MARKUP:
            continue
        if found and found[-1][0] == piece.part.value and piece.part is not AnswerPart.CALL:
            found[-1] = (found[-1][0], found[-1][1] + piece.text)
        else:
            found.append((piece.part.value, piece.text))
    return found


@pytest.mark.parametrize(("form", "text", "parts"), ANSWERS)
def test_an_answer_is_divided_alike_however_it_is_cut(
    form: AnswerForm, text: str, parts: list[tuple[str, str]]
) -> None:
    for size in (1, 2, 3, 7, len(text)):
        reader = AnswerReader(form)
        pieces = [piece for at in range(0, len(text), size) for piece in reader.feed(text[at : at + size])]
        pieces += reader.finish()
        assert joined(pieces) == parts
        assert sum(piece.length for piece in pieces) == len(text)
        assert reader.num_calls == sum(part == "call" for part, _ in parts)


markup = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "', '", "arguments": ', '{"name": "a", "arguments": {}}', "a", "x", ">"]
)


@given(st.lists(markup, max_size=12), st.sampled_from([PLAIN, TAGGED, BARE, THINKING]))
def test_every_character_of_any_answer_is_in_one_piece(texts: list[str], form: AnswerForm) -> None:
    whole, cut = AnswerReader(form), AnswerReader(form)
    all_at_once = whole.feed("".join(texts)) + whole.finish()
    one_by_one = [piece for text in texts for piece in cut.feed(text)] + cut.finish()
    assert joined(all_at_once) == joined(one_by_one)
    assert sum(piece.length for piece in one_by_one) == len("".join(texts))
