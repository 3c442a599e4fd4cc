"""Ollama's route that fetches models, with its official client and a stand-in for the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import ollama
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from rnn_engine.cli.serve import NamedModel
from rnn_engine.cli.serving import load_models
from rnn_engine.cli.session import EngineChoice, load_engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.apis.ollama.schemas import OllamaError, PullStatus
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve, check_shape, post
from tests.support.hub import StandInHub, stand_in_hub
from tests.support.models import random_model, save_safetensors, tiny_shape

REPOSITORY = "someone/small-rwkv"
FILE = "small.st"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInHub]:
    with stand_in_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_safetensors(random_model(tiny_shape(vocab=96), seed=1), tmp_path / FILE, "f32")
    return tmp_path / FILE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


async def app_of(weights: Path, settings: ServerSettings) -> web.Application:
    choice = EngineChoice(weights, LoadSettings("cpu", "none"), 2)
    return make_app(await load_models(choice, [NamedModel("one", weights)], None, load_engine), settings)


@pytest.fixture
async def client(weights: Path, folder: Path) -> AsyncIterator[ollama.AsyncClient]:
    async with (
        TestServer(await app_of(weights, ServerSettings(model_folder=folder))) as server,
        ollama.AsyncClient(host=str(server.make_url(""))) as client,
    ):
        yield client


async def test_a_model_is_fetched_and_served(
    client: ollama.AsyncClient, hub: StandInHub, weights: Path, folder: Path
) -> None:
    hub.repositories[REPOSITORY] = {FILE: weights.read_bytes()}
    statuses = [each.status async for each in await client.pull(f"hf.co/{REPOSITORY}", stream=True)]
    assert (statuses[0], statuses[-2:]) == ("pulling manifest", ["loading the model", "success"])
    assert (folder / REPOSITORY / FILE).read_bytes() == weights.read_bytes()
    assert {model.model for model in (await client.list()).models} == {"one", REPOSITORY}
    assert (await client.show(REPOSITORY)).details is not None


async def test_without_a_stream_the_answer_comes_at_the_end(
    client: ollama.AsyncClient, hub: StandInHub, weights: Path
) -> None:
    hub.repositories[REPOSITORY] = {FILE: weights.read_bytes()}
    assert (await client.pull(f"{REPOSITORY}:{FILE}")).status == "success"
    assert {model.model for model in (await client.list()).models} == {"one", f"{REPOSITORY}:{FILE}"}
    downloads = len(hub.downloads)
    assert (await client.pull(f"{REPOSITORY}:{FILE}")).status == "success"  # served already
    assert len(hub.downloads) == downloads


async def test_what_fails_while_it_is_fetched_is_told_in_the_stream(
    client: ollama.AsyncClient, hub: StandInHub, weights: Path
) -> None:
    hub.repositories[REPOSITORY] = {FILE: weights.read_bytes()}
    hub.damages = {FILE}
    with pytest.raises(ollama.ResponseError, match="has the checksum"):
        async for _ in await client.pull(REPOSITORY, stream=True):
            pass
    assert [model.model for model in (await client.list()).models] == ["one"]


async def test_a_file_that_is_no_model_is_told(client: ollama.AsyncClient, hub: StandInHub) -> None:
    hub.repositories[REPOSITORY] = {FILE: b"no model"}
    with pytest.raises(ollama.ResponseError) as refused:
        await client.pull(REPOSITORY)
    assert refused.value.status_code == 400
    assert [model.model for model in (await client.list()).models] == ["one"]


@pytest.mark.parametrize(
    ("name", "status", "words"), [("llama3", 400, "OWNER/REPOSITORY"), ("no/such", 400, "no such repository")]
)
async def test_what_is_nowhere_is_refused(
    client: ollama.AsyncClient, hub: StandInHub, name: str, status: int, words: str
) -> None:
    with pytest.raises(ollama.ResponseError, match=words) as refused:
        async for _ in await client.pull(name, stream=True):
            pass
    assert refused.value.status_code == status


async def test_a_served_model_is_there(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for name in ("fake", "fake:latest"):
        assert await post(client, "/api/pull", PullStatus, {"model": name, "stream": False}) == {"status": "success"}
    lines = await (await client.post("/api/pull", json={"name": "fake"})).text()
    assert lines == '{"status":"success"}\n'


async def test_without_a_folder_nothing_is_fetched(serve: Serve) -> None:
    response = await (await serve(FakeEngine())).post("/api/pull", json={"model": REPOSITORY})
    error = await response.json()
    check_shape(OllamaError, error)
    assert (response.status, "--model-folder" in error["error"]) == (404, True)


async def test_only_an_admin_fetches_models(weights: Path, folder: Path) -> None:
    keys = ApiKey.of("use", "user", Scope.MANAGE), ApiKey.of("admin", "admin")
    settings = ServerSettings(auth=AuthSettings(keys), model_folder=folder)
    async with TestClient(TestServer(await app_of(weights, settings))) as client:
        error = await pull_as(client, "use", REPOSITORY, 403)
        assert "rnn-engine pull" in error["error"]
        assert await pull_as(client, "use", "one", 200) == {"status": "success"}
        await pull_as(client, "admin", "llama3", 400)


async def pull_as(client: Client, key: str, model: str, status: int) -> Body:
    headers = {"Authorization": f"Bearer {key}"}
    response = await client.post("/api/pull", json={"model": model, "stream": False}, headers=headers)
    answer: Body = await response.json()
    assert response.status == status, answer
    return answer
