"""Loading and unloading models while the server runs, over real engines on the CPU, with ai00's bodies."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader

from rnn_engine.cli.serve import NamedModel
from rnn_engine.cli.serving import load_models
from rnn_engine.cli.session import EngineChoice
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.apis.ai00.files import FileEntry, Token, WrittenFile
from rnn_engine_server.apis.ai00.models import ModelsInfo
from rnn_engine_server.apis.common.states import StateEntry
from rnn_engine_server.apis.openai.models import ModelEntry
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from rnn_engine_server.models.files import ModelFileEntry
from rnn_engine_server.models.registry import MODELS
from tests.support.fake_engine import FakeEngine
from tests.support.gguf import save_gguf
from tests.support.http import Body, Client, Load, Through, check_shape, client_over, error_of, parse_event, post
from tests.support.models import embedding_shape, random_model, reranker_shape, save_safetensors, tiny_shape
from tests.support.named_states import save_tuned_state, some_state
from tests.support.older_models import tiny_v6

ID = "6a9c60a4-0f4c-40b1-a31f-987f73e20315"
LOAD, UNLOAD = "/admin/models/load", "/admin/models/unload"
CALL: Body = {"prompt": [1, 2], "max_tokens": 3}
PAIR = tiny_shape(width=128, head_size=64, vocab=96)
ONE_REPLICA = pytest.mark.over_one_engine("a fleet tells the slots of all its replicas")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("one", "two")):
        save_safetensors(random_model(tiny_shape(vocab=96), seed=seed), folder / f"{name}.st", "f32")
    save_safetensors(random_model(tiny_v6(), seed=6), folder / "six.st", "f32")
    for seed, (name, shape) in enumerate({"vectors": embedding_shape(PAIR), "ranks": reranker_shape(PAIR)}.items()):
        save_safetensors(random_model(shape, seed=seed), folder / f"{name}.st", "f32")
    (folder / "notes.txt").write_text("no model")
    (folder / "broken.st").write_bytes(b"no model")
    damage_a_scale(save_gguf(random_model(PAIR, seed=1), folder / "damaged.gguf", "Q8_0"))
    return folder


def damage_a_scale(path: Path) -> None:
    """Write NaN over the scale of the last block in a file of blocks of Q8_0."""
    *_, matrix = [each for each in GGUFReader(path).tensors if each.tensor_type == GGMLQuantizationType.Q8_0]
    content = bytearray(path.read_bytes())
    start = matrix.data_offset + matrix.n_bytes - GGML_QUANT_SIZES[matrix.tensor_type][1]
    content[start : start + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(content)


@pytest.fixture
async def client(load: Load, folder: Path) -> AsyncIterator[Client]:
    choice = EngineChoice(folder / "one.st", LoadSettings("cpu", "none"), 2)
    models = await load_models(choice, [NamedModel("one", folder / "one.st")], None, load)
    settings = ServerSettings(model_folder=folder)
    async with client_over(models, settings) as client:
        yield client


async def who_answers(client: Client, **fields: object) -> str:
    response = await client.post("/v1/completions", json={**CALL, **fields})
    assert response.status == 200, await response.text()
    name: str = (await response.json())["model"]
    return name


async def statuses(client: Client) -> dict[str, str]:
    listed = await (await client.get("/v1/models")).json()
    return {entry["id"]: entry["meta"]["status"] for entry in listed["data"]}


@ONE_REPLICA
async def test_a_model_takes_the_place_of_the_default_one_as_with_ai00(client: Client) -> None:
    loaded = await post(client, LOAD, ModelEntry, {"model_path": "two.st", "max_batch": 3, "precision": "Fp16"})
    assert (loaded["id"], loaded["meta"]["num_slots"]) == ("two", 3)
    assert await statuses(client) == {"one": "unloaded", "two": "loaded"}
    assert await who_answers(client) == "two"
    error = await error_of(await client.post("/v1/completions", json={**CALL, "model": "one"}), 503)
    assert error["message"] == "the model 'one' is unloaded; an admin can load it again"
    assert (await client.get("/health/ready")).status == 200


async def test_a_model_is_added_under_a_name_and_unloaded(client: Client) -> None:
    await post(client, LOAD, ModelEntry, {"model_path": "two.st", "name": "second", "add": True})
    assert [await who_answers(client), await who_answers(client, model="second")] == ["one", "second"]
    unloaded = await post(client, UNLOAD, ModelEntry, {"model": "second"})
    assert unloaded["meta"]["status"] == "unloaded"
    assert await statuses(client) == {"one": "loaded", "second": "unloaded"}
    assert (await client.get(UNLOAD)).status == 200
    assert (await client.get("/health/ready")).status == 503
    await post(client, LOAD, ModelEntry, {"model_path": "one.st"})
    assert await who_answers(client) == "one"


async def test_an_embedding_model_is_loaded_with_its_reranker(client: Client, folder: Path) -> None:
    order = {"model_path": "vectors.st", "reranker_path": "ranks.st", "add": True}
    loaded = await post(client, LOAD, ModelEntry, order)
    assert loaded["meta"]["embedding"] is not None
    assert loaded["meta"]["embedding"]["reranker"] == "ranks"
    info = await (await client.get("/api/models/info", params={"model": "vectors"})).json()
    check_shape(ModelsInfo, info)
    assert info["reload"]["reranker_path"] == str(folder / "ranks.st")
    await post(client, LOAD, ModelEntry, {"model_path": "vectors.st", "add": True})
    entry = await (await client.get("/v1/models/vectors")).json()
    assert entry["meta"]["embedding"]["reranker"] is None


@ONE_REPLICA
async def test_a_model_is_loaded_anew_while_requests_run_and_come(client: Client) -> None:
    endless = {**CALL, "max_tokens": 40, "logit_bias": {"0": -1000}, "stream": True}
    async with client.post("/v1/completions", json=endless) as response:
        await response.content.readuntil(b"\n\n")
        loading = asyncio.create_task(client.post(LOAD, json={"model_path": "one.st", "max_batch": 5}))
        coming = asyncio.create_task(who_answers(client))
        assert b"[DONE]" in await response.read()
    assert (await loading).status == 200
    assert await coming == "one"
    assert (await (await client.get("/v1/models/one")).json())["meta"]["num_slots"] == 5


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model_path": "../x.st"}, 403, "outside of"),
        ({"model_path": "/etc/passwd"}, 403, "outside of"),
        ({"model_path": "three.st"}, 404, "there is no file 'three.st'"),
        ({"model_path": "broken.st"}, 400, "broken.st"),
        ({"model_path": "damaged.gguf"}, 400, "has damaged blocks of Q8_0; expected scales that are finite numbers"),
        ({"model_path": "two.st", "lora": [{"path": "/tmp"}]}, 403, "outside of"),
        ({"model_path": "two.st", "tokenizer_path": "no.json"}, 404, "there is no file 'no.json'"),
        ({"model_path": "vectors.st", "reranker_path": "../ranks.st"}, 403, "outside of"),
        ({"model_path": "vectors.st", "reranker_path": "no.st"}, 404, "there is no file 'no.st'"),
        ({"model_path": "vectors.st", "reranker_path": "two.st"}, 400, "two.st holds v7; expected a reranker"),
        ({"model_path": "two.st", "reranker_path": "ranks.st"}, 400, "and the model is v7"),
        ({"model_path": "ranks.st"}, 400, "expected an embedding model beside it"),
        ({"model_path": "two.st", "weights": "int3"}, 400, "int3"),
        ({"model_path": "two.st", "quant": 1, "quant_type": "Int3"}, 400, "quant_type"),
        ({"model_path": "two.st", "adapter": {"Manual": -1}}, 400, "Economical"),
    ],
)
async def test_what_can_not_be_loaded(client: Client, body: Body, status: int, words: str) -> None:
    error = await error_of(await client.post(LOAD, json=body), status)
    assert words in error["message"]
    assert await statuses(client) == {"one": "loaded"}
    assert await who_answers(client) == "one"


async def test_a_model_that_does_not_load_leaves_the_one_of_its_name(client: Client) -> None:
    assert (await client.post(LOAD, json={"model_path": "broken.st", "name": "one"})).status == 400
    assert await who_answers(client) == "one"


async def test_what_is_loaded_as_ai00_tells_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    info = await (await client.get("/api/models/info")).json()
    check_shape(ModelsInfo, info)
    reload = info["reload"]
    assert reload["model_path"].endswith("one.st")
    assert (reload["quant"], reload["quant_type"], reload["adapter"], reload["device"]) == (0, "None", "Auto", "cpu")
    assert info["model"]["version"] == "V7"
    assert set(info["model"]["custom"]["V7"]) == {"w", "a", "v", "g"}
    monkeypatch.setattr("rnn_engine_server.apis.ai00.models._STATE_SECONDS", 0)
    for path in ("/api/models/state", "/api/oai/models/state"):
        async with client.get(path) as response:
            assert response.content_type == "text/event-stream"
            events = [parse_event((await response.content.readuntil(b"\n\n")).decode()[:-2]) for _ in range(2)]
        assert events == [info, info]


@ONE_REPLICA
async def test_what_is_loaded_can_be_loaded_so_again(client: Client, folder: Path) -> None:
    shape = tiny_shape(vocab=96)
    save_tuned_state(folder / "poet.st", some_state(1, shape), shape)
    key = "fd7a60ed-7807-449f-8256-bccae3246222"
    order = {
        "model_path": "one.st",
        "lora": [],
        "state": [{"path": "poet.st", "id": key, "default": True}, {"path": "poet.st", "name": "bard"}],
        "quant": 1,
        "quant_type": "Int8",
        "precision": "Fp16",
        "token_chunk_size": 128,
        "max_batch": 3,
        "bnf": {"enable_bytes_cache": True, "start_nonterminal": "start"},
        "adapter": {"Manual": 0},
    }
    await post(client, LOAD, ModelEntry, order)
    info = await (await client.get("/api/models/info")).json()
    check_shape(ModelsInfo, info)
    reload = info["reload"]
    assert reload["state"] == [
        {"path": str(folder / "poet.st"), "name": "poet", "id": key, "default": True},
        {"path": str(folder / "poet.st"), "name": "bard", "id": None, "default": False},
    ]
    assert (reload["quant"], reload["quant_type"], reload["max_batch"]) == (1, "Int8", 3)
    assert [(state["name"], state["default"]) for state in info["states"]] == [("poet", True), ("bard", False)]
    assert (await client.post("/v1/completions", json={**CALL, "state": key})).status == 200
    await post(client, LOAD, ModelEntry, reload)
    again = await (await client.get("/api/models/info")).json()
    assert again == info
    (folder / "poet.st").unlink()


async def test_the_folder_of_models(client: Client, folder: Path) -> None:
    listed = await (await client.get("/api/models/list")).json()
    for entry in listed:
        check_shape(ModelFileEntry, entry)
    broken, models = ["broken.st", "damaged.gguf"], ["one.st", "ranks.st", "six.st", "two.st", "vectors.st"]
    assert [entry["name"] for entry in listed] == broken + models
    by_name = {entry["name"]: entry for entry in listed}
    assert by_name["broken.st"]["info"] is None
    assert by_name["one.st"]["info"]["num_vocab"] == 96
    assert by_name["six.st"]["info"] == {
        "version": "V6",
        "num_layer": 2,
        "num_emb": 64,
        "num_hidden": 100,
        "num_vocab": 96,
        "num_head": 4,
        "custom": {"V6": {"time_mix": 6, "time_decay": 9}},
    }
    assert by_name["one.st"]["sha"] == hashlib.sha256((folder / "one.st").read_bytes()).hexdigest()


async def test_without_a_folder_the_served_models_are_listed(load: Load, folder: Path) -> None:
    choice = EngineChoice(folder / "one.st", LoadSettings("cpu", "none"), 2)
    named = [NamedModel("one", folder / "one.st"), NamedModel("other", folder / "two.st")]
    models = await load_models(choice, named, None, load)
    async with client_over(models) as client:
        listed = await (await client.get("/api/models/list")).json()
    for entry in listed:
        check_shape(ModelFileEntry, entry)
    assert [(entry["name"], entry["path"]) for entry in listed] == [
        ("one.st", str(folder / "one.st")),
        ("two.st", str(folder / "two.st")),
    ]
    assert listed[0]["info"]["num_vocab"] == 96


async def test_a_served_model_without_a_file_is_listed_too(through: Through) -> None:
    async with client_over(await through(FakeEngine())) as client:
        [entry] = await (await client.get("/api/models/list")).json()
    check_shape(ModelFileEntry, entry)
    assert (entry["name"], entry["size"], entry["info"]["num_vocab"]) == ("fake", 0, 257)


async def test_devices(client: Client) -> None:
    found = await (await client.get("/api/adapters")).json()
    assert all(name.endswith(")") and " (" in name for name in found)


async def test_only_admins_load_and_only_from_a_folder(load: Load, folder: Path) -> None:
    keys = ApiKey.of("use", "user", Scope.MANAGE), ApiKey.of("admin", "admin")
    choice = EngineChoice(folder / "one.st", LoadSettings("cpu", "none"), 2)
    models = await load_models(choice, [NamedModel("one", folder / "one.st")], None, load)
    app = make_app(models, ServerSettings(auth=AuthSettings(keys)))
    async with TestClient(TestServer(app)) as client:
        for key, status, words in (("use", 403, "needs 'admin'"), ("admin", 404, "--model-folder")):
            headers = {"Authorization": f"Bearer {key}"}
            error = await error_of(await client.post(LOAD, json={"model_path": "one.st"}, headers=headers), status)
            assert words in error["message"]
        assert app[MODELS].default.status == "loaded"


async def test_a_model_is_saved_as_a_prefab_and_loaded_from_it(client: Client, folder: Path) -> None:
    saved = await post(client, "/admin/models/save", WrittenFile, {"path": "saved/../one.prefab"})
    assert saved == {"path": str(folder / "one.prefab"), "size": (folder / "one.prefab").stat().st_size}
    again = {"path": "one.prefab"}
    error = await error_of(await client.post("/admin/models/save", json=again), 400)
    assert "overwrite" in error["message"]
    await post(client, "/admin/models/save", WrittenFile, {**again, "overwrite": True})
    await post(client, LOAD, ModelEntry, {"model_path": "one.prefab", "name": "of prefab"})
    assert await who_answers(client) == "of prefab"
    assert (await client.post("/admin/models/save", json={"path": "../x.prefab"})).status == 403
    (folder / "one.prefab").unlink()


async def test_a_state_is_named_and_the_folder_listed(client: Client, folder: Path) -> None:
    shape = tiny_shape(vocab=96)
    save_tuned_state(folder / "poet.st", some_state(1, shape), shape)
    named = await post(client, "/admin/models/state/load", StateEntry, {"path": "poet.st", "name": "bard", "id": ID})
    assert (named["name"], named["form"], named["id"]) == ("bard", "tuned", ID)
    for name in ("bard", ID):
        assert (await client.post("/v1/completions", json={**CALL, "state": name})).status == 200
    assert (await client.post("/admin/models/state/load", json={"path": "poet.st", "id": "x"})).status == 400
    for path, with_sha in (("/admin/files/ls", False), ("/admin/files/dir", True)):
        listed = await (await client.post(path, json={"is_sha": with_sha})).json()
        for entry in listed:
            check_shape(FileEntry, entry)
        found = {entry["name"]: entry for entry in listed}
        assert found["poet.st"]["info"] is found["notes.txt"]["info"] is None
        assert found["one.st"]["info"]["num_vocab"] == 96
        assert found["notes.txt"]["sha"] == (hashlib.sha256(b"no model").hexdigest() if with_sha else "")
    (folder / "poet.st").unlink()
    for path, status in (("/", 403), ("none", 404), ("one.st", 400)):
        assert (await client.post("/admin/files/ls", json={"path": path})).status == status, path


async def test_a_key_is_exchanged_for_a_token(through: Through) -> None:
    settings = ServerSettings(auth=AuthSettings((ApiKey.of("secret", "app"),)))
    async with client_over(await through(FakeEngine()), settings) as client:
        for body in ({"app_id": "other", "app_secret": "secret"}, {"app_id": "app", "app_secret": "wrong"}):
            response = await client.post("/api/auth/exchange", json=body)
            refused = await response.json()
            check_shape(Token, refused)
            assert (response.status, refused["code"], refused["token"]) == (403, 403, None)
        found = await post(client, "/api/auth/exchange", Token, {"app_id": "app", "app_secret": "secret"})
        assert (found["code"], found["message"]) == (200, "SUCCESS")
        headers = {"Authorization": f"Bearer {found['token']}"}
        assert (await client.get("/v1/models", headers=headers)).status == 200


async def test_an_admins_token_may_stand_in_the_query_of_admin_routes_alone(through: Through) -> None:
    settings = ServerSettings(auth=AuthSettings((ApiKey.of("secret", "app"),)))
    async with client_over(await through(FakeEngine()), settings) as client:
        assert (await client.get("/admin/models/unload?admin_token=wrong")).status == 401
        assert (await client.get("/v1/models?admin_token=secret")).status == 401
        assert (await client.get("/admin/models/unload?admin_token=secret")).status == 200
