"""Translation of llama-server's tests to options and requests of this server, and the table of outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.llama_server_tests.__main__ import table
from tools.llama_server_tests.options import NO_SUCH_OPTION, DoesNotApplyError, body_of, options_of

MODELS, TESTS = Path("models"), Path("/cache/tools/server/tests")


def process(**options: object) -> SimpleNamespace:
    """Return a stand-in for the tests' `ServerProcess`, with the defaults that the translation reads."""
    none = ("model_alias", "n_ctx", "n_slots", "chat_template", "chat_template_file", "api_key", "cors_origins")
    also_none = ("reasoning", "reasoning_format", "slot_save_path", "sleep_idle_seconds", "n_predict", *NO_SUCH_OPTION)
    of_vectors = ("pooling", "server_reranking", "server_embeddings")
    defaults = {"model_hf_repo": "ggml-org/models", "temperature": 0.8, "seed": 42, "debug": False, "kv_unified": False}
    return SimpleNamespace(**{**dict.fromkeys((*none, *also_none, *of_vectors)), **defaults, **options})


def test_options_are_those_of_this_server() -> None:
    template = "../../../models/templates/a.jinja"
    server = process(n_slots=2, n_ctx=512, api_key="key", chat_template_file=template, model_alias="one")
    command = options_of(server, MODELS, TESTS)
    assert command[0] == f"one={MODELS / 'tiny.safetensors'}"
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert options == {
        "--device": "cpu",
        "--slots": "2",
        "--max-prompt-tokens": "256",
        "--chat-template": "/cache/models/templates/a.jinja",
        "--api-key": "key",
        "--cors-origin": "*",
    }


@pytest.mark.parametrize("option", [{"lora_files": ["a"]}, {"model_hf_repo": None}, {"chat_template": "llama3"}])
def test_what_there_is_not_does_not_apply(option: Mapping[str, object]) -> None:
    with pytest.raises(DoesNotApplyError):
        options_of(process(**option), MODELS, TESTS)


def test_requests_have_the_defaults_of_the_process() -> None:
    server = process(n_predict=64, temperature=0.0)
    assert body_of(server, "/completion", {"prompt": "a"}) == {
        "prompt": "a",
        "temperature": 0.0,
        "seed": 42,
        "max_tokens": 64,
    }
    assert body_of(server, "/completion", {"n_predict": 8, "seed": 1, "temperature": 1.0}) == {
        "n_predict": 8,
        "seed": 1,
        "temperature": 1.0,
    }
    assert body_of(server, "/tokenize", {"content": "a"}) == {"content": "a"}
    assert body_of(server, "/slots", None) is None


def test_table_has_a_row_for_each_file() -> None:
    outcomes = {
        "test_a.py::test_one[1]": ("passes", ""),
        "test_a.py::test_two": ("does not apply", "images"),
        "test_a.py::test_four": ("does not apply", "a router"),
        "test_a.py::test_five": ("does not apply", "images"),
        "test_b.py::test_three": ("fails", "assert 1 == 2"),
    }
    assert list(table(outcomes))[2:] == [
        "| test_a.py | 1 | 3 | 0 | a router; images (2) |",
        "| test_b.py | 0 | 0 | 1 |  |",
        "| all | 1 | 3 | 1 | |",
        "",
        "Fails:",
        "",
        "* `test_b.py::test_three`: assert 1 == 2",
    ]
