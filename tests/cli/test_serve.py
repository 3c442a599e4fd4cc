"""`rnn-engine serve`, `generate` and `chat` with the real engine, on the CPU."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.cli import Command
from tests.support.processes import serving_process
from tests.support.retrieval import EMBEDDING, RERANKER


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def server(model_file: Path, cache_folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the server's output at its start, and its address. SIGTERM ends it, and it must end well."""
    options = ("--device", "cpu", "--port", 0, "--slots", 3, "--cache-folder", cache_folder)
    with serving_process("serve", model_file, *options) as serving:
        yield serving.said, serving.address


def test_says_what_it_serves_and_how_to_ask(server: tuple[str, str]) -> None:
    said, address = server
    assert "tiny: RWKV v7, layers 2, width 64, " in said
    assert "cpu" in said
    assert "3 slots" in said
    assert "memory " not in said  # the device is the processor
    body = '{"prompt": [1, 2, 3], "return_token_ids": true}'  # the model has no tokenizer, so no chat would work
    assert f"curl {address}/v1/completions -d '{body}'" in said


async def test_eight_clients_at_once(server: tuple[str, str]) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server[1]}/v1", api_key="any") as client:
        answers = await asyncio.gather(
            *(client.completions.create(model="tiny", prompt=[number, 2], max_tokens=5, seed=1) for number in range(8))
        )
    assert [answer.usage.prompt_tokens for answer in answers if answer.usage is not None] == [2] * 8


def test_the_garbage_collector_passes_over_what_was_imported(
    rnn_engine: Command, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr("rnn_engine.cli.serving.run", lambda *_: done.append("run"))
    rnn_engine("serve", model_file)
    assert done == ["freeze", "run"]


def test_generate_continues_tokens(rnn_engine: Command, model_file: Path) -> None:
    arguments = ("generate", model_file, "--tokens", "1,2,3", "--max-tokens", 4, "--temperature", 0, "--device", "cpu")
    first, second = rnn_engine(*arguments), rnn_engine(*arguments)
    assert re.fullmatch(r"(\d+ ){1,4}\n", first)
    assert first == second


def test_a_model_without_a_tokenizer_is_told(
    rnn_engine: Command, model_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = ("generate", model_file, "--tokens", 1, "--max-tokens", 1, "--device", "cpu")
    rnn_engine(*arguments, "--tokenizer", "none")
    assert caplog.messages == []
    rnn_engine(*arguments)
    [said] = caplog.messages
    assert said.startswith("tiny.safetensors has no tokenizer, so it takes token ids and no text: its folder has no ")


def test_tokenizer_that_is_missing(rnn_engine: Command, model_file: Path) -> None:
    said = rnn_engine("chat", model_file, "--tokenizer", "no.json", "--device", "cpu", code=1)
    assert said.startswith("Error: ")
    assert "'no.json'" in said


def test_port_in_use(rnn_engine: Command, model_file: Path, server: tuple[str, str]) -> None:
    port = server[1].rpartition(":")[2]
    said = rnn_engine("serve", model_file, "--device", "cpu", "--port", port, code=1)
    advice = "--port takes another, as does `make serve PORT=8000`"
    assert said == f"Error: can't listen on 127.0.0.1 port {port}: Address already in use; {advice}\n"


def test_a_cache_folder_that_another_server_uses(
    rnn_engine: Command, model_file: Path, cache_folder: Path, server: tuple[str, str]
) -> None:
    said = rnn_engine("serve", model_file, "--device", "cpu", "--port", 0, "--cache-folder", cache_folder, code=1)
    refusal = "another process uses it; expected a folder that no other process uses"
    assert said == f"Error: cache folder {cache_folder}: {refusal}\n"
    assert server[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "other machines can reach 0.0.0.0, and there is no API key; set one with --api-key or"),
        (["--cors-origin", "*"], "--cors-origin * needs an API key"),
        (
            ["--cors-origin", "chat.example"],
            "Invalid value for '--cors-origin': 'chat.example'; expected an origin such as https://",
        ),
        (["--tls-cert", "no.pem"], "--tls-cert: no.pem can't be read: No such file"),
        (["--api-key", ""], "the API key 'operator' can't be sent in a request; expected printable ASCII"),
        (["--key-state-ttl", "60"], "60.0 is not in the range"),
    ],
)
def test_doors_that_can_not_be_are_told_at_once(
    rnn_engine: Command, model_file: Path, options: list[str], message: str
) -> None:
    said = rnn_engine("serve", model_file, "--device", "cpu", "--port", 0, *options, code=2)
    assert message in " ".join(said.split())


def test_a_reranker_is_found_by_its_name(rnn_engine: Command) -> None:
    said = rnn_engine("serve", EMBEDDING, "--reranker", "owner/repository:rank.pth", code=2)
    assert "owner/repository:rank.pth is neither a file nor a model that was pulled" in said
    said = rnn_engine("serve", EMBEDDING, "--reranker", "demo", "--device", "cpu", "--tokenizer", "none", code=1)
    assert "holds v7; expected a reranker" in said


def test_an_embedding_model_with_its_reranker() -> None:
    options = ("--reranker", RERANKER, "--device", "cpu", "--tokenizer", "none", "--port", 0)
    with serving_process("serve", EMBEDDING, *options) as serving:
        assert "embedding: RWKV v7-embedding" in serving.said
        assert "tokenizer none, reranker reranker\n" in serving.said
        assert f"curl {serving.address}/v1/embeddings -d" in serving.said
        with openai.OpenAI(base_url=f"{serving.address}/v1", api_key="any") as client:
            answer = client.embeddings.create(model="embedding", input=[[1, 2, 3]])
        assert len(answer.data[0].embedding) == 128
