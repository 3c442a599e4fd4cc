"""Files of text that any editor wrote: a byte-order mark is skipped, and another encoding than UTF-8 is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pytest

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.cli.session import EngineChoice
from rnn_engine.demo import model_path
from rnn_engine.files import read_text
from rnn_engine.loading.chat_template import load_chat_template
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.tokenizer.world import read_vocabulary
from rnn_engine.training.records import read_records
from rnn_engine_server.auth.keys import read_keys
from tests.support.cli import Command
from tests.support.fake_engine import FakeEngine

Install: TypeAlias = Callable[[FakeEngine], list[EngineChoice]]


HI = Conversation([ChatMessage(Role.USER, "Hi")])


class Case(NamedTuple):
    """A reader of files, a content, and the ending of the file's name."""

    read: Callable[[Path], object]
    text: str
    ending: str = ".txt"


CASES: Final = {
    "text": Case(read_text, "a\nb"),
    "keys": Case(read_keys, f"ann {'k' * 40}"),
    "vocabulary": Case(read_vocabulary, "1 'a' 1\n2 'b' 1"),
    "template": Case(
        lambda path: load_chat_template(str(path), model_path()).render(HI, 100).text, "{{ messages }}\n!", ".jinja"
    ),
    "tokenizer": Case(
        lambda path: load_tokenizer(str(path), path, 65536).encode("a sunny day"),
        (model_path().parent / "tokenizer.json").read_text("utf-8"),
        ".json",
    ),
    "paragraphs": Case(lambda path: list(read_records(path)), "One\n\nTwo"),
    "examples": Case(lambda path: list(read_records(path)), '{"text": "a"}\n{"text": "b"}\n', ".jsonl"),
    "array": Case(lambda path: list(read_records(path)), '[{"text": "a"}]', ".json"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_byte_order_mark_is_skipped(name: str, tmp_path: Path) -> None:
    read, text, ending = CASES[name]
    plain, marked = (tmp_path / f"{encoding}{ending}" for encoding in ("utf-8", "utf-8-sig"))
    plain.write_text(text, "utf-8")
    marked.write_text(text.replace("\n", "\r\n"), "utf-8-sig")
    assert repr(read(marked)).replace("\\r\\n", "\\n") == repr(read(plain))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", CASES)
def test_another_encoding_is_refused_and_the_right_one_named(name: str, encoding: str, tmp_path: Path) -> None:
    read, text, ending = CASES[name]
    path = tmp_path / f"a{ending}"
    path.write_text(text, encoding)
    with pytest.raises(Exception, match="UTF-8"):
        read(path)


def test_a_batch_and_options_take_a_mark(rnn_engine: Command, install: Install, tmp_path: Path) -> None:
    install(FakeEngine())
    file, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}})
        for name in "ab"
    ]
    file.write_text("\n".join(lines), "utf-8-sig")
    assert "2 of 2 requests are answered" in rnn_engine("batch", "demo", file, "-o", output)
    file.write_text("\n".join(lines), "utf-16")
    assert "in UTF-16; expected UTF-8" in rnn_engine("batch", "demo", file, "-o", output, code=2)


def test_a_grammar_in_another_encoding_is_refused(rnn_engine: Command, tmp_path: Path) -> None:
    grammar = tmp_path / "a.gbnf"
    grammar.write_text('root ::= "a"', "utf-16")
    for option in ("--grammar", "--json-schema"):
        said = " ".join(rnn_engine("generate", "demo", "a", option, grammar, code=2).split())
        assert f"{option} {grammar} can't be read" in said
        assert "expected UTF-8" in said


def test_settings_take_a_mark(rnn_engine: Command, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("no-such-option = 1", "utf-8-sig")
    assert "unknown option 'no-such-option'" in rnn_engine("serve", "--config", config, code=2)
    config.write_text("slots = 1", "utf-16")
    assert "expected UTF-8" in " ".join(rnn_engine("serve", "--config", config, code=2).split())
