"""The choice of a model's chat template."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rnn_engine.chat_template import ChatMessage, Conversation, Role, WorldTemplate
from rnn_engine.chat_template.tools import ToolFormats
from rnn_engine.demo import model_path
from rnn_engine.errors import ModelError
from rnn_engine.loading.chat_template import load_chat_template

HI = Conversation([ChatMessage(Role.USER, "Hi")])
JINJA = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"


def test_the_demo_model_has_signatures_of_tools() -> None:
    template = load_chat_template("auto", model_path())
    assert isinstance(template, WorldTemplate)
    assert template == WorldTemplate(tool_format=ToolFormats.SIGNATURES.value)


@pytest.mark.parametrize(
    ("name", "thinks"), [("rwkv7-g1a-2.9b.pth", True), ("RWKV-x070-World-3B.st", False), ("rwkv7_g0.gguf", True)]
)
def test_without_a_file_it_is_worlds(tmp_path: Path, name: str, thinks: bool) -> None:
    assert load_chat_template("auto", tmp_path / name) == WorldTemplate(thinks=thinks)


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    config = {"chat_template": JINJA, "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "model.safetensors"):
        rendered = load_chat_template("auto", path).render(HI, 100)
        assert (rendered.text, rendered.stop_tokens) == ("<s>Hi</s>", ("</s>",))
    assert isinstance(load_chat_template("world", tmp_path), WorldTemplate)
    (tmp_path / "chat_template.jinja").write_text(f"!{JINJA}")
    assert load_chat_template("auto", tmp_path).render(HI, 100).text == "!<s>Hi</s>"


def test_of_named_templates_the_one_for_tools_is_taken(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_chat_template("auto", tmp_path).source == "b"


def test_a_file_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages[0].role }}")
    assert load_chat_template(str(tmp_path / "mine.jinja"), model_path()).render(HI, 100).text == "user"
    (tmp_path / "mine.json").write_text('{"record": "<{role}> {content}", "sep": "|", "tools": "json", "thinks": true}')
    found = load_chat_template(str(tmp_path / "mine.json"), model_path())
    assert found == WorldTemplate("<{role}> {content}", sep="|", tool_format=ToolFormats.JSON.value, thinks=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.jinja", "{% if %}"), ("a.json", "{}"), ("a.json", '{"tools": "xml"}'), ("a.json", '{"record": "x"}')],
)
def test_a_wrong_file_is_refused_where_it_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=name):
        load_chat_template(str(tmp_path / name), model_path())
    with pytest.raises(ModelError, match="can't be read"):
        load_chat_template(str(tmp_path / "absent.jinja"), model_path())


def test_a_broken_template_of_a_model_is_told_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with caplog.at_level(logging.WARNING):
        assert load_chat_template("auto", tmp_path / "m.pth") == WorldTemplate()
    assert "is not a valid Jinja template" in caplog.text
