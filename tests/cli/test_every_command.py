"""Every command as a process, started as its help says, with a real answer. `fleet` is in tests/fleet."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import click
import cloup
import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

from rnn_engine.cli import main
from rnn_engine.cli.serve import serve_command as serve_command
from rnn_engine.convert import TITLES
from rnn_engine.demo import model_path, pirate_state_path
from rnn_engine.loading.runner import open_model
from rnn_engine_server.auth.keys import KeyRing, read_keys
from tests.support.gguf import save_gguf
from tests.support.hub import stand_in_hub
from tests.support.models import random_model, save_safetensors, tiny_shape
from tests.support.processes import Serving, rnn_engine_process, serving_process

REPOSITORY, FILE = "someone/tiny-rwkv", "tiny-20260101.safetensors"
SHORT = ("--device", "cpu", "--temperature", 0, "--max-tokens", 4)


@dataclass(frozen=True, slots=True)
class Place:
    """The files and folders of a command."""

    folder: Path
    model: Path


@pytest.fixture
def place(tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Yield a folder for all files of commands, with a hub that has the model."""
    monkeypatch.setenv("RNN_ENGINE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    with stand_in_hub() as hub:
        hub.repositories[REPOSITORY] = {FILE: model_file.read_bytes()}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield Place(tmp_path, model_file)


def serve(place: Place) -> None:
    """Start one server with options of every group, and check an effect of each group."""
    config, cache, log = place.folder / "config.toml", place.folder / "cache", place.folder / "log"
    config.write_text('any-model = true\ncors-origin = "https://chat.example"\n')
    groups: Mapping[str, tuple[object, ...]] = {
        "Model and device": ("--device", "cpu", "--chat-template", "world", "--speculate", 4),
        "Requests": ("--slots", 3, "--no-strict"),
        "Address and process": ("--config", config, "--port", 0, "--no-web"),
        "Several models": ("--default-model", "tiny"),
        "Kept states": ("--cache-folder", cache, "--cache-write-after", 0),
        "States by name": ("--state", f"mate={pirate_state_path()}"),
        "Collections of documents": ("--collection-folder", place.folder / "documents"),
        "Jobs": ("--job-folder", place.folder / "jobs"),
        "Access": ("--api-key", "secret"),
        "Limits of a request": ("--max-answer-tokens", 50),
        "Connections": ("--idle-seconds", 60),
        "Log": ("--log-format", "json", "--log-level", "debug"),
    }
    assert [group.title for group in _groups_of(serve_command)] == list(groups)
    options = [word for words in groups.values() for word in words]
    with serving_process("serve", f"one={model_path()}", f"tiny={place.model}", *options, log=log) as serving:
        assert "3 slots" in serving.said
        with _client(serving) as client:
            _ask_for_all_groups(client)
    assert list(cache.rglob("*.*"))
    assert {json.loads(line)["level"] for line in log.read_text().splitlines()} >= {"info"}


def _ask_for_all_groups(client: httpx.Client) -> None:
    assert client.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert {model["id"] for model in client.get("/v1/models").json()["data"]} == {"one", "tiny"}
    assert client.get("/").text == client.get("/docs").text
    chat = {"model": "one", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "unheard": 1}
    answer = client.post("/v1/chat/completions", json=chat, headers={"Origin": "https://chat.example"})
    assert answer.json()["choices"][0]["message"]["content"]
    assert answer.headers["X-Left-Out"] == "unheard"
    assert answer.headers["Access-Control-Allow-Origin"] == "https://chat.example"
    assert client.post("/v1/chat/completions", json={**chat, "state": "mate"}).status_code == 200
    assert "max_answer_tokens" in client.post("/v1/chat/completions", json={**chat, "max_tokens": 51}).text
    by_default = client.post("/v1/completions", json={"model": "any", "prompt": [1, 2], "max_tokens": 3})
    assert by_default.json()["model"] == "tiny"


def _client(serving: Serving) -> httpx.Client:
    return httpx.Client(base_url=serving.address, headers={"Authorization": "Bearer secret"}, timeout=60)


def chat(_place: Place) -> None:
    answer = rnn_engine_process("chat", *SHORT, "--state", f"mate={pirate_state_path()}", stdin="Hello\n/state\n")
    assert answer.strip()
    assert "* mate\n" in answer


def generate(_place: Place) -> None:
    whole = rnn_engine_process("generate", *SHORT, "--chat", "What is the capital of France?", "--regex", "[A-Z][a-z]+")
    assert re.fullmatch("[A-Z][a-z]+\n", whole)


def batch(place: Place) -> None:
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi", "max_tokens": 4}}
    file, output = place.folder / "in.jsonl", place.folder / "out.jsonl"
    file.write_text(json.dumps(request))
    assert "1 of 1 requests" in rnn_engine_process("batch", file, "-o", output, "--device", "cpu")
    assert json.loads(output.read_text())["response"]["status_code"] == 200


def devices(_place: Place) -> None:
    assert rnn_engine_process("devices").splitlines()[-1].startswith("cpu: ")


def pull(place: Place) -> None:
    pulled = rnn_engine_process("pull", REPOSITORY).strip()
    assert Path(pulled).read_bytes() == place.model.read_bytes()


def models(place: Place) -> None:
    local = place.folder / "models" / REPOSITORY / FILE
    local.parent.mkdir(parents=True)
    local.write_bytes(place.model.read_bytes())
    assert str(local) in rnn_engine_process("models")


def inspect(place: Place) -> None:
    assert json.loads(rnn_engine_process("inspect", place.model, "--json"))["version"] == "v7"


def convert(place: Place) -> None:
    """Convert a GGUF file through every format that can be written, so that each is also read."""
    model = random_model(tiny_shape(head_size=64, vocab=96), seed=5)
    source, first = save_gguf(model, place.folder / "first.gguf"), place.folder / "first.safetensors"
    save_safetensors(model, first, "f32")
    for number, ending in enumerate((*TITLES, "")):
        target = place.folder / f"converted-{number}{ending}"
        assert f"{target}: " in rnn_engine_process("convert", source, target)
        source = target
    with open_model(first) as before, open_model(source) as after:
        unused = {f"blocks.0.att.{name}" for name in ("v0", "v1", "v2")}  # some formats leave these out
        assert set(before.names) - set(after.names) <= unused
        for name in after.names:
            assert np.allclose(after.tensor(name), before.tensor(name), rtol=1e-2, atol=1e-3), name


def bench(place: Place) -> None:
    short = ("--slots", 1, "--lengths", 2, "--repeats", 1, "--json")
    lines = json.loads(rnn_engine_process("bench", place.model, "--device", "cpu", *short))["results"]
    assert all(line["tokens_per_second"] > 0 for line in lines)


def tune_state(place: Place) -> None:
    data = place.folder / "data.jsonl"
    data.write_text('{"instruction": "Hi", "output": "Ho"}\n{"instruction": "Bye", "output": "So long"}\n')
    output = place.folder / "made.safetensors"
    rnn_engine_process("tune-state", data, "-o", output, "--steps", 1, "--rate", 0.1, "--device", "cpu")
    assert {name.rpartition(".")[2] for name in load_file(output)} == {"time_state"}


def tune_lora(place: Place) -> None:
    data = place.folder / "data.jsonl"
    data.write_text('{"instruction": "Hi", "output": "Ho"}\n{"instruction": "Bye", "output": "So long"}\n')
    output = place.folder / "made.safetensors"
    rnn_engine_process("tune-lora", data, "-o", output, "--steps", 1, "--rate", 0.1, "--device", "cpu")
    assert {name.rpartition(".")[2] for name in load_file(output)} == {"lora_A", "lora_B"}


def tune_kernels(place: Place) -> None:
    table = rnn_engine_process("tune-kernels", place.model, "--seconds", 0.1)
    assert "fixed choice" in table


def key(place: Place) -> None:
    made, line = (text.split(maxsplit=1)[1] for text in rnn_engine_process("key", "me").splitlines())
    (place.folder / "keys").write_text(f"{line}\n")
    known = KeyRing(read_keys(place.folder / "keys")).find(made)
    assert known is not None
    assert known.name == "me"


def fleet(_place: Place) -> None:
    assert (Path(__file__).parents[1] / "fleet" / "test_command.py").is_file()


STARTS: Mapping[str, Callable[[Place], None]] = MappingProxyType(
    {
        start.__name__.replace("_", "-"): start
        for start in (
            serve,
            fleet,
            chat,
            generate,
            batch,
            devices,
            pull,
            models,
            inspect,
            convert,
            bench,
            tune_state,
            tune_lora,
            tune_kernels,
            key,
        )
    }
)


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_it_starts_and_answers(name: str, place: Place) -> None:
    """Run the command's function in `STARTS`. A command that is missing there fails."""
    STARTS[name](place)


def _groups_of(command: click.Command) -> list[cloup.OptionGroup]:
    assert isinstance(command, cloup.Command)
    return [group for group in command.option_groups if group.title != "Other options"]
