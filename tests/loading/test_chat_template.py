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
from tests.support.gguf import write_gguf

HI = Conversation([ChatMessage(Role.USER, "Hi")])
JINJA = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"


def test_the_demo_model_has_signatures_of_tools() -> None:
    template = load_chat_template("auto", model_path())
    assert isinstance(template, WorldTemplate)
    assert template == WorldTemplate(tool_format=ToolFormats.SIGNATURES.value)


@pytest.mark.parametrize(
    "name",
    [
        *("rwkv7-g1a-2.9b.pth", "rwkv7_g0.gguf", "rwkv7-g1-0.1b-20250307-ctx4096.pth", "RWKV-7-G1.st", "RWKV7-G1d"),
        *(f"rwkv7-g1{letter}-2.9b-20250819-ctx4096.pth" for letter in "abcdefghijz"),
        *("rwkv7a-g1b-0.1b-20250819-ctx4096.pth", "rwkv7b-g1b-0.1b.pth", "rwkv7-g0a3-7.2b-20251029-ctx8192.pth"),
        *("rwkv7-0.1B-g1-F16.gguf", "rwkv7-0.4B-g1d-Q8_0.gguf", "rwkv7-2.9b-g1g-Q4_K_M.gguf", "rwkv7-g2b-1.5b.pth"),
        *("rwkv7-0.1B-g1", "RWKV-x070-G1-0.4B.pth", "rwkv7g1a.pth", "rwkv7-g1/model.safetensors", "rwkv7-g1/m.gguf"),
        "models--fla-hub--rwkv7-0.1B-g1/snapshots/0f3a9d",
        "models--fla-hub--rwkv7-0.1B-g1/snapshots/0f3a9d/model.safetensors",
        "world/rwkv7-g1-0.1b.pth",
        "rwkv7-g1a-1.5b-worldbuilding.gguf",
    ],
)
def test_names_of_models_that_think(tmp_path: Path, name: str) -> None:
    assert load_chat_template("auto", tmp_path / name) == WorldTemplate(thinks=True)


@pytest.mark.parametrize(
    "name",
    [
        *("RWKV-x070-World-3B.st", "rwkv-7-world", "rwkv7-goose-world", "rwkv7-1.5B-world-int4-g128.safetensors"),
        *("RWKV-6-World-7B-g32.st", "rwkv-6-finch-g1.pth", "rwkv7-1.5B-g128.st", "model.safetensors", "gg1.pth"),
        *("rwkv7-g1/rwkv-7-world-0.1b.pth", "models--fla-hub--rwkv7-0.1B-world/snapshots/0f3a9d/model.safetensors"),
    ],
)
def test_names_of_models_without_thoughts(tmp_path: Path, name: str) -> None:
    assert load_chat_template("auto", tmp_path / name) == WorldTemplate()


@pytest.mark.parametrize(
    "values",
    [
        {"general.name": "Rwkv7 0.1B G1"},
        {"general.basename": "rwkv7-g1d"},
        {"general.name": "a", "general.finetune": "g1"},
    ],
)
def test_names_in_a_gguf_file(tmp_path: Path, values: dict[str, str]) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "rwkv7", {"tokenizer.chat_template": "rwkv-world", **values}, {})
    assert load_chat_template("auto", path) == WorldTemplate(thinks=True)


def test_a_name_in_a_folders_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"_name_or_path": "fla-hub/rwkv7-0.1B-g1"}')
    assert load_chat_template("auto", tmp_path) == WorldTemplate(thinks=True)
    (tmp_path / "config.json").write_text("[]")
    assert load_chat_template("auto", tmp_path / "model.safetensors") == WorldTemplate()


@pytest.mark.parametrize(
    ("file", "text"),
    [("tokenizer_config.json", '{"chat_template": "rwkv-world"}'), ("chat_template.jinja", "rwkv-world\n")],
)
def test_the_name_of_a_template_is_none(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    assert load_chat_template("auto", tmp_path) == WorldTemplate()
    with pytest.raises(ModelError, match="expected a Jinja template"):
        load_chat_template(str(tmp_path / file), tmp_path)


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
    named = [{"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_chat_template("auto", tmp_path).source == "{{ b }}"


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
