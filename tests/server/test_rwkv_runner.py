"""RWKV-Runner's routes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rnn_engine.cli.serve import NamedModel
from rnn_engine.cli.serving import load_models
from rnn_engine.cli.session import EngineChoice, load_engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.apis.rwkv_runner import RunnerError, RunnerStatus
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.models.registry import MODELS
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve, check_shape, client_over
from tests.support.models import embedding_shape, random_model, reranker_shape, save_safetensors, tiny_shape

SWITCH, UPDATE = "/switch-model", "/update-config"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    for seed, name in enumerate(("one", "two")):
        save_safetensors(random_model(tiny_shape(vocab=96), seed=seed), tmp_path / f"{name}.st", "f32")
    choice = EngineChoice(tmp_path / "one.st", LoadSettings("cpu", "none"), 2)
    models = await load_models(choice, [NamedModel("one", tmp_path / "one.st")], None, load_engine)
    async with client_over(models, ServerSettings(model_folder=tmp_path)) as client:
        yield client


async def status_of(client: Client) -> Body:
    answer: Body = await (await client.get("/status")).json()
    check_shape(RunnerStatus, answer)
    return answer


async def test_another_model_takes_the_place_of_the_default_one(client: Client) -> None:
    assert await status_of(client) == {"status": 3, "pid": os.getpid(), "device_name": "cpu"}
    body = {"model": "two.st", "strategy": "cuda fp16", "tokenizer": "", "customCuda": False, "deploy": False}
    response = await client.post(SWITCH, json=body)
    assert (response.status, await response.json()) == (200, "success")
    assert client.app[MODELS].default.name == "two"
    assert [model.status for model in client.app[MODELS]] == ["unloaded", "loaded"]
    response = await client.post(SWITCH, json={"model": "", "strategy": ""})
    assert (await response.json(), (await status_of(client))["status"]) == ("success", 0)


async def test_a_model_that_was_served_comes_back_with_its_name_and_its_reranker(tmp_path: Path) -> None:
    pair = tiny_shape(width=128, head_size=64, vocab=96)
    for name, shape in {"vectors": embedding_shape(pair), "ranks": reranker_shape(pair), "two": tiny_shape()}.items():
        save_safetensors(random_model(shape, seed=1), tmp_path / f"{name}.st", "f32")
    choice = EngineChoice(tmp_path / "vectors.st", LoadSettings("cpu", "none", reranker=tmp_path / "ranks.st"), 2)
    models = await load_models(choice, [NamedModel("search", tmp_path / "vectors.st")], None, load_engine)
    async with client_over(models, ServerSettings(model_folder=tmp_path)) as client:
        for file in ("two.st", "vectors.st"):
            assert (await client.post(SWITCH, json={"model": file})).status == 200
        assert [model.name for model in models] == ["search", "two"]
        info = models.default.info
        assert info is not None
        assert info.embedding is not None
        assert (info.model, info.embedding.reranker) == ("search", "ranks")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "none.st"}, 404, "there is no file 'none.st'"),
        ({"model": "/etc/passwd"}, 403, "outside of"),
        ({"model": "two.st", "tokenizer": "none.txt"}, 404, "none.txt"),
        ({"model": "two.st", "deploy": True}, 400, "API keys"),
        ({"model": "two.st", "unknown": 1}, 400, "unknown field"),
        ({}, 400, "model"),
    ],
)
async def test_refusals_are_in_rwkv_runners_form(client: Client, body: Body, status: int, words: str) -> None:
    response = await client.post(SWITCH, json=body)
    error = await response.json()
    check_shape(RunnerError, error)
    assert (response.status, words in error["detail"]) == (status, True), error
    assert client.app[MODELS].default.name == "one"


async def test_without_a_folder_no_model_is_loaded(serve: Serve) -> None:
    response = await (await serve(FakeEngine())).post(SWITCH, json={"model": "two.st", "strategy": "cuda fp16"})
    assert (response.status, "--model-folder" in (await response.json())["detail"]) == (404, True)


async def test_settings_for_all_requests_are_left_out_and_named(serve: Serve) -> None:
    client = await serve(FakeEngine())
    response = await client.post(UPDATE, json={"max_tokens": 100, "top_p": 0.3, "global_penalty": False})
    assert (response.status, await response.json()) == (200, "success")
    assert response.headers["X-Left-Out"] == "global_penalty, max_tokens, top_p"
    strict = await serve(FakeEngine(), ServerSettings(strict=True))
    assert (await strict.post(UPDATE, json={"top_p": 0.3})).status == 400
