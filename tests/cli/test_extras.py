"""Without the packages of the extras, commands work that don't need them, and the others name the extra in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import pytest

from rnn_engine.cli import main
from rnn_engine.demo import model_path
from rnn_engine.errors import ModelError, TokenizerError
from rnn_engine.tensor_files.ggml_file import ELEMENT_TYPES
from rnn_engine.tokenizer import load_tokenizer

MODULES = {
    "chat": ("httpx", "httpx_sse", "markdown_it", "prompt_toolkit"),
    "gguf": ("gguf",),
    "hub": ("huggingface_hub",),
    "tokenizers": ("tokenizers",),
}
OTHER_MODULES = ("obstore", "onnxruntime", "opentelemetry", "ray", "semantic_text_splitter", "valkey")
RUN = """
import json, sys
from click.testing import CliRunner
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # makes importing them fail
from rnn_engine.cli import main
results = [CliRunner().invoke(main, arguments, prog_name="rnn-engine") for arguments in json.load(sys.stdin)]
print(json.dumps([[result.exit_code, result.output] for result in results]))
"""


def run_without(*commands: Sequence[object]) -> list[tuple[int, str]]:
    """Run commands in a process that has none of the packages, and return their exit codes and outputs."""
    modules = [*OTHER_MODULES, *(module for each in MODULES.values() for module in each)]
    given = json.dumps([list(map(str, command)) for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", RUN, *modules], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [(code, output) for code, output in json.loads(done.stdout)]


def needs(what: str, extra: str) -> str:
    return f"{what} needs the packages of the extra `{extra}`: pip install 'rnn-engine[{extra}]'\n"


def tokenizer_path() -> Path:
    return model_path().parent / "tokenizer.json"


def test_the_extra_full_is_all_of_them() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert extras["full"] == [f"rnn-engine[{','.join(sorted((*MODULES, 'serve')))}]"]
    for extra, modules in MODULES.items():
        names = [re.split(r"[<>=]", requirement)[0].replace("-", "_") for requirement in extras[extra]]
        assert [name.removesuffix("_py") for name in names] == list(modules)


def test_what_needs_no_extra_works_and_the_rest_names_it(model_file: Path, tmp_path: Path) -> None:
    working: list[Sequence[object]] = [
        ["--help"],
        *((name, "--help") for name in main.list_commands(click.Context(main))),
        ["generate", model_file, "--tokens", "1,2", "--device", "cpu", "--max-tokens", 2],
        ["inspect", model_file],
        ["convert", model_file, tmp_path / "a.pth"],
        ["devices"],
        ["key", "ann"],
        ["models"],
    ]
    refused: list[Sequence[object]] = [
        ["chat"],
        ["chat", "--url", "http://127.0.0.1:9"],
        ["pull", "rwkv7-0.1b"],
        ["convert", model_file, tmp_path / "a.gguf"],
        ["generate", "Hi", "--device", "cpu"],
    ]
    results = run_without(*working, *refused)
    answers, refusals = results[: len(working)], results[len(working) :]
    assert [code for code, _ in answers] == [0] * len(working), answers
    assert "Hugging Face's cache is not searched; for that, pip install 'rnn-engine[hub]'" in answers[-1][1]
    assert [code for code, _ in refusals] == [2, 2, 2, 1, 1]
    chat, remote_chat, pull, convert, generate = (output for _, output in refusals)
    assert chat.endswith(f"Error: {needs('a conversation on the terminal', 'chat')}")
    assert remote_chat.endswith(f"Error: {needs('a conversation on the terminal', 'chat')}")
    assert pull.endswith(f"Error: {needs('fetching a model', 'hub')}")
    assert convert.endswith(f"a.gguf was not written: {needs('writing a .gguf', 'gguf')}")
    assert not (tmp_path / "a.gguf").exists()
    assert generate == f"Error: {needs(f'the tokenizer {tokenizer_path()}', 'tokenizers')}"


def test_a_server_needs_no_extra() -> None:
    """Import what `serve` and `fleet` run; tests start servers only with all extras."""
    modules = [*OTHER_MODULES, *(module for each in MODULES.values() for module in each)]
    imports = "import sys\nsys.modules.update(dict.fromkeys(sys.argv[1:]))\nimport rnn_engine.cli.serving"
    subprocess.run([sys.executable, "-c", imports, *modules], check=True)


def test_a_gguf_file_whose_blocks_have_to_be_decoded_needs_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    [kind] = [each for each in ELEMENT_TYPES.values() if each.name == "Q6_K"]
    with pytest.raises(ModelError, match="reading Q6_K needs the packages of the extra `gguf`"):
        kind.decode(np.zeros(kind.block_bytes, np.uint8), (kind.block_size,))


def test_a_tokenizer_of_hugging_face_needs_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.delitem(sys.modules, "rnn_engine.tokenizer.huggingface", raising=False)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="needs the packages of the extra `tokenizers`"):
        load_tokenizer("auto", tmp_path / "model.st", 100)
    assert load_tokenizer("world", tmp_path / "model.st", 65536).name == "world"


def test_without_the_extra_serve_python_works_and_the_command_says_what_it_needs() -> None:
    absent = ("aiohttp", "click", "cloup", "prometheus_client", "tomli_w")
    without = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\n"
    script = without + "from rnn_engine import LLM\nwith LLM(device='cpu') as llm: print(llm.chat('What is 2 + 3?'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
    script = without + "from rnn_engine.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, needs("the command rnn-engine", "serve"))
