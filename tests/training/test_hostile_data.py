"""Data files that are broken or hostile give an error that names the line, or a right run."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.errors import InvalidRequestError
from rnn_engine.training import records as module
from rnn_engine.training.data import BadLines, DataSettings, TextMaker, read_data
from rnn_engine.training.records import Record, read_records
from tests.support.byte_tokenizer import ByteTokenizer

MAKER = TextMaker(ByteTokenizer(), WorldTemplate())
GOOD = b'{"text": "one"}\n{"text": "two"}\n'


def refusal(path: Path, content: bytes, name: str = "data.jsonl", bad_lines: BadLines = "error") -> str:
    """Return the error for a file."""
    path = path / name
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError) as caught:
        read_data(path, MAKER, DataSettings(1000, bad_lines=bad_lines))
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": "\xff"}', "line 3 is not UTF-8: byte 0xff at 11"),
        (b"\xff\xfe{\x00", "line 3 is not UTF-8: byte 0xff at 1"),
        (b"{", "line 3 is no JSON"),
        (b'{"text": "a"} {"text": "b"}', "line 3 is no JSON: more follows after character 13"),
        (b'{"text": "a\x00"}', "line 3 is no JSON"),
        (b'{"text": NaN}', "line 3 is no JSON: NaN is no number of JSON"),
        (b'{"text": 1' + b"0" * 5000 + b"}", "line 3 is no JSON"),
        (b'{"text": "a", "text": "b"}', "line 3 is no JSON: the key 'text' comes twice"),
        (b'{"text": "\\ud800"}', "line 3: text: '\\ud800' is not allowed; expected Unicode text"),
        (b'{"text": 3}', "line 3: text: 3 is not allowed; expected a string"),
        (b'{"text": null}', "line 3: text: None is not allowed; expected a string"),
        (b"[" * 100_000, "line 3 is no JSON"),
        (b"3", "line 3: the record: 3 is not allowed; expected a JSON object"),
        (b'["text"]', "line 3: the record: ['text'] is not allowed; expected a JSON object"),
        (b"{}", "line 3: the record: [] is not allowed; expected the keys of a known form: messages; conversations"),
        (b'{"messages": {}}', "line 3: messages: {} is not allowed; expected a list"),
        (b'{"messages": ["Hi"]}', "line 3: messages.0: 'Hi' is not allowed; expected a JSON object"),
        (b'{"messages": [{"role": "robot", "content": "a"}]}', "line 3: messages.0.role: 'robot' is not allowed"),
        (b'{"messages": [{"role": "user"}]}', "line 3: messages.0.content: None is not allowed; expected a string"),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "line 3: messages.0.content.0.type: 'image_url' is not allowed; expected text",
        ),
        (
            b'{"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}',
            "line 3: messages.0.weight: 0.5 is not allowed; expected 0 or 1",
        ),
        (
            b'{"messages": [{"role": "user", "content": "a", "weight": 1}]}',
            "line 3: messages.0.weight: 1 is not allowed; expected null, since only answers",
        ),
        (
            b'{"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]}',
            "line 3: messages.0.reasoning_content: 'b' is not allowed",
        ),
        (b'{"conversations": [{"from": "cat", "value": "a"}]}', "line 3: conversations.0.from: 'cat' is not allowed"),
        (b'{"instruction": "a", "output": []}', "line 3: output: [] is not allowed; expected a string"),
        (b'{"prompt": "a", "completion": ["b"]}', "line 3: completion: ['b'] is not allowed; expected a string"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, words: str) -> None:
    message = refusal(tmp_path, GOOD + line + b"\n" + GOOD)
    assert f"records that can't be used: 1: {words}" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[{"text": "one"}, {"text": "two"}', "1: item 3 is no item of a JSON array: expected a comma or a bracket"),
        (b'[{"text": "one"} {"text": "two"}]', "1: item 2 is no item of a JSON array: expected a comma or a bracket"),
        (b'[{"text": "one"}, {"text": "two"}] 3', "1: item 3 is no item of a JSON array: the array has ended"),
        (b'[{"text": "one"}, {"text": }]', "1: item 2 is no item of a JSON array"),
        (b'[{"text": "one"}, {"text": "\xff"}]', "1: item 2: text: '\\udcff' is not allowed; expected Unicode text"),
        (b"[", "1: item 1 is no item of a JSON array"),
    ],
)
def test_a_bad_item_of_an_array_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(tmp_path, content, "data.json")


def test_items_of_an_array_may_stand_on_many_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 7)  # so that every item and many characters are cut
    values = [{"text": "ä€😀" * number, "n": [number, 12345.5, None]} for number in range(20)]
    path = tmp_path / "data.json"
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False), "utf-8")
    assert [record.value for record in read_records(path) if isinstance(record, Record)] == values


@pytest.mark.parametrize("content", [b"", b"\n \n\t\r\n", b"\xef\xbb\xbf", b"[]", b'{"messages": []}'])
def test_a_file_without_anything_to_learn(tmp_path: Path, content: bytes) -> None:
    assert "has nothing to learn; expected at least one answer or text" in refusal(tmp_path, content)


def test_a_file_without_anything_to_learn_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    words = refusal(tmp_path, b"x\n{}\n", bad_lines="skip")
    assert "has nothing to learn: records that can't be used: 2: line 1 is no JSON" in words


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.jsonl"):
        with pytest.raises(InvalidRequestError, match=r"can't be read: (Is a|No such)"):
            read_data(path, MAKER, DataSettings(1000))


def test_control_characters_in_a_plain_text(tmp_path: Path) -> None:
    message = refusal(tmp_path, b"One\n\nTwo\nThree\x00\n\nFour", "data.txt")
    assert "1: line 3 begins a paragraph with control characters; expected a text" in message


def test_memory_does_not_grow_with_a_line_or_with_empty_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 18)
    path = tmp_path / "data.jsonl"
    with path.open("wb") as file:
        file.write(b"\n" * 100_000 + GOOD)
        file.seek(100 << 20, 1)  # of a sparse file: a line of NUL bytes
        file.write(b"\n" + GOOD)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match="1: line 100003 has more than 262144 bytes"):
            read_data(path, MAKER, DataSettings(1000))
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


def test_a_long_conversation_takes_no_longer_than_its_beginning(tmp_path: Path) -> None:
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"messages": turn * 20_000}) + "\n" + GOOD.decode())
    data = read_data(path, MAKER, DataSettings(100, long_texts="cut"))
    assert data.report.long.listed == ["line 1"]
    assert max(document.num_inputs for document in (*data.training, *data.held_out)) == 100


NAMES = "role content messages user assistant system weight conversations from value human gpt text prompt completion"
MORE_NAMES = "instruction input output tools tool_calls function type name arguments parameters"
WORDS = st.sampled_from([*NAMES.split(), *MORE_NAMES.split(), "", "a", "\x00", "\ud800", "\ufdd0", "\n\n", "😀"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.lists(st.fixed_dictionaries({"role": WORDS, "content": VALUES}, optional={"weight": VALUES, "x": VALUES}))
RECORDS = st.one_of(
    VALUES,
    st.fixed_dictionaries({"messages": MESSAGES}, optional={"tools": VALUES, "functions": VALUES}),
    st.fixed_dictionaries({"conversations": st.lists(st.fixed_dictionaries({"from": WORDS, "value": VALUES}))}),
    st.fixed_dictionaries({"prompt": VALUES, "completion": VALUES}),
    st.fixed_dictionaries({"instruction": VALUES, "output": VALUES}, optional={"input": VALUES, "system": VALUES}),
    st.fixed_dictionaries({"text": VALUES}),
)
LINES = st.one_of(
    RECORDS.map(lambda value: json.dumps(value).encode()),
    RECORDS.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    st.binary(max_size=40),
)


@settings(max_examples=120)
@given(lines=st.lists(LINES, max_size=4), name=st.sampled_from(["a.jsonl", "a.json", "a.txt"]), is_array=st.booleans())
def test_any_file_gives_an_error_or_documents(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], name: str, is_array: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(b"[%b]" % b",\n".join(lines) if is_array else b"\n".join(lines))
    for chosen in (DataSettings(30), DataSettings(30, bad_lines="skip", long_texts="cut")):
        try:
            data = read_data(path, MAKER, chosen)
        except InvalidRequestError as error:
            message: str | None = str(error)
        else:
            message = None
        if message is not None:
            assert str(path) in message
            continue
        for document in (*data.training, *data.held_out):
            assert 1 <= document.num_inputs <= 30
            assert document.weights[0] == 0
            assert document.weights.any()
