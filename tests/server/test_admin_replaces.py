"""Admins may replace files through the server, and folders that it has written itself, but never one in use."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rnn_engine.cli.serve import NamedModel
from rnn_engine.cli.serving import load_models
from rnn_engine.cli.session import EngineChoice, load_engine
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.model import LoraChoice
from rnn_engine_server.apis.ai00.files import WrittenFile
from rnn_engine_server.core.settings import ServerSettings
from tests.support.http import Body, Client, client_over, error_of, post
from tests.support.loras import draw_pair, save_ai00
from tests.support.models import random_model, save_safetensors, tiny_shape

LOAD, SAVE, UNZIP = "/admin/models/load", "/admin/models/save", "/admin/files/unzip"
SAVE_CONFIG = "/admin/files/config/save"
CALL: Body = {"prompt": [1, 2], "max_tokens": 3}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Return the folder of models, in a folder with other folders of a user."""
    folder = tmp_path / "models"
    folder.mkdir()
    model = random_model(tiny_shape(head_size=64), seed=0)
    save_safetensors(model, folder / "one.st", "f32")
    save_ai00({"blocks.1.att.key": draw_pair(model, "blocks.1.att.key.weight", 4)}, folder / "lora.st")
    for place in (folder / "valuable", tmp_path / "outside"):
        place.mkdir()
        (place / "thesis.txt").write_text("years of work")
    return folder


@pytest.fixture
async def client(models: Path) -> AsyncIterator[Client]:
    """Yield a client of a server. Its states are in the folder of models, like unpacked archives and settings."""
    loading = LoadSettings("cpu", "none", loras=[LoraChoice(models / "lora.st", 8.0)])
    choice = EngineChoice(models / "one.st", loading, 2, None, StateSettings(folder=models / "states"))
    served = await load_models(choice, [NamedModel("one", models / "one.st")], None, load_engine)
    settings = ServerSettings(model_folder=models, unzip_folders=(models,))
    async with client_over(served, settings) as client:
        state = {"name": "kept", "prompt": [1, 2], "persistent": True}
        assert (await client.post("/v1/states", json=state)).status == 200
        yield client


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, except those that a server writes by itself. Links are not followed."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (".", "not below"),
        ("", "path"),
        ("valuable", "holds 'thesis.txt'"),
        ("states", ".state'"),
        ("valuable/..", "not below"),
        ("notes", "is a file"),
        ("pipe.st", "a file"),
        ("folder.st", "holds 'thesis.txt'"),
        ("one.st", "the model 'one' was loaded from it"),
        ("./states/../one.st", "the model 'one' was loaded from it"),
        ("lora.st", "the model 'one' was loaded from it"),
        ("linked", "not below"),
        ("linked/thesis", "not below"),
        ("linked/x.st", "not below"),
        ("link.st", "not below"),
        ("served.st", "the model 'one' was loaded from it"),
        ("none/x.st", "can't be written: No such file or directory"),
        ("none/x", "can't be written: No such file or directory"),
        ("a" * 300 + ".st", "can't be written: File name too long"),
        ("a" * 300, "can't be written: File name too long"),
        ("a\0.st", "not below"),
    ],
)
async def test_what_a_saved_model_does_not_replace(client: Client, models: Path, path: str, words: str) -> None:
    (models / "notes").write_text("mine")
    (models / "folder.st").mkdir()
    (models / "folder.st" / "thesis.txt").write_text("mine")
    os.mkfifo(models / "pipe.st")
    (models / "linked").symlink_to(models.parent / "outside")
    (models / "link.st").symlink_to(models.parent / "outside" / "thesis.txt")
    (models / "served.st").symlink_to(models / "one.st")
    before = contents(models.parent)
    response = await client.post(SAVE, json={"path": path, "overwrite": True})
    assert contents(models.parent) == before
    assert response.status in (400, 403, 507)
    assert words in (await error_of(response, response.status))["message"]
    assert stat.S_ISFIFO((models / "pipe.st").lstat().st_mode)
    assert (models / "link.st").is_symlink()
    assert (await client.post("/v1/completions", json={**CALL, "state": "kept"})).status == 200


async def test_a_folder_that_was_written_as_a_model_is_replaced_until_it_is_changed(
    client: Client, models: Path
) -> None:
    body = {"path": "saved", "overwrite": True}
    for _ in range(2):
        written = await post(client, SAVE, WrittenFile, body)
        sizes = {name: len(data) for name, data in contents(models / "saved").items()}
        assert set(sizes) == {"config.json", "model.safetensors", ".rnn-engine.json"}
        assert written == {"path": str(models / "saved"), "size": sum(sizes.values())}
    with open_model(models / "saved") as model:
        assert model.shape.num_layers == 2
    (models / "saved" / "tokenizer.json").write_text("{}")
    error = await error_of(await client.post(SAVE, json=body), 400)
    assert "holds 'tokenizer.json'" in error["message"]
    (models / "saved" / "tokenizer.json").unlink()
    (models / "saved" / "model.safetensors").write_bytes(b"trained further")
    error = await error_of(await client.post(SAVE, json=body), 400)
    assert "holds 'model.safetensors'" in error["message"]
    assert (models / "saved" / "model.safetensors").read_bytes() == b"trained further"


async def test_a_folder_that_is_served_is_not_replaced(client: Client, models: Path) -> None:
    await post(client, SAVE, WrittenFile, {"path": "saved"})
    load = {"model_path": "saved", "name": "two", "add": True, "tokenizer_path": None}
    assert (await client.post(LOAD, json=load)).status == 200
    before = contents(models)
    for path in ("saved", "saved/model.safetensors", "saved/new.st"):
        error = await error_of(await client.post(SAVE, json={"path": path, "overwrite": True}), 400)
        assert "the model 'two' was loaded from it" in error["message"]
    assert contents(models) == before


async def test_a_file_that_a_link_in_the_folder_means_is_replaced_there(client: Client, models: Path) -> None:
    (models / "old.st").write_text("old")
    (models / "new.st").symlink_to(models / "old.st")
    written = await post(client, SAVE, WrittenFile, {"path": "new.st", "overwrite": True})
    assert written["path"] == str(models / "old.st")
    with open_model(models / "new.st") as model:
        assert model.shape.num_layers == 2


def pack(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("valuable", "holds 'thesis.txt'"),
        ("states", ".state'"),
        ("notes", "is a file"),
        ("one.st", "the model 'one' was loaded from it"),
        ("linked", "not below"),
        ("linked/x", "not below"),
        (".", "not below"),
    ],
)
async def test_what_an_archive_does_not_replace(client: Client, models: Path, output: str, words: str) -> None:
    pack(models / "a.zip", "x")
    (models / "notes").write_text("mine")
    (models / "linked").symlink_to(models.parent / "outside")
    before = contents(models.parent)
    response = await client.post(UNZIP, json={"path": "a.zip", "output": output})
    assert contents(models.parent) == before
    assert response.status in (400, 403)
    assert words in (await error_of(response, response.status))["message"]


async def test_an_unpacked_folder_is_replaced_until_it_is_changed(client: Client, models: Path) -> None:
    pack(models / "a.zip", "one.txt", "sub/two.txt", "empty/", "./")
    body = {"path": "a.zip", "output": "web"}
    for _ in range(2):
        await post(client, UNZIP, WrittenFile, body)
        assert set(contents(models / "web")) == {"one.txt", "sub/two.txt", ".rnn-engine.json"}
    (models / "web" / "empty" / "mine").mkdir()
    error = await error_of(await client.post(UNZIP, json=body), 400)
    assert (error["param"], "holds 'empty/mine'" in error["message"]) == ("output", True)


async def test_an_archive_does_not_replace_a_model_that_is_served(client: Client, models: Path) -> None:
    with zipfile.ZipFile(models / "a.zip", "w") as archive:
        archive.write(models / "one.st", "two.st")
    body = {"path": "a.zip", "output": "unpacked"}
    await post(client, UNZIP, WrittenFile, body)
    load = {"model_path": "unpacked/two.st", "name": "two", "add": True}
    assert (await client.post(LOAD, json=load)).status == 200
    error = await error_of(await client.post(UNZIP, json=body), 400)
    assert "the model 'two' was loaded from it" in error["message"]
    assert (models / "unpacked" / "two.st").exists()


@pytest.mark.parametrize("name", ["a/" * 1900, "a/" * 1900 + "x"])
async def test_a_deep_archive_is_refused_and_leaves_nothing(client: Client, models: Path, name: str) -> None:
    pack(models / "deep.zip", *("a/" * level for level in range(1, 1900)), name)
    names = sorted(path.name for path in models.iterdir())
    response = await client.post(UNZIP, json={"path": "deep.zip", "output": "web"})
    assert sorted(path.name for path in models.iterdir()) == names
    assert "at most 100 levels of folders" in (await error_of(response, 400))["message"]


@pytest.mark.parametrize(
    ("output", "words"), [("a" * 300, "File name too long"), ("notes/x/y", "Not a directory"), ("notes/x", "exists")]
)
async def test_a_place_that_can_not_be_unpacked_into(client: Client, models: Path, output: str, words: str) -> None:
    pack(models / "a.zip", "x")
    (models / "notes").write_text("mine")
    before = contents(models)
    error = await error_of(await client.post(UNZIP, json={"path": "a.zip", "output": output}), 507)
    assert "can't be written: " in error["message"]
    assert words in error["message"]
    assert contents(models) == before


async def test_an_archive_of_too_long_names_is_the_archives_fault(client: Client, models: Path) -> None:
    pack(models / "a.zip", "a" * 300)
    error = await error_of(await client.post(UNZIP, json={"path": "a.zip", "output": "web"}), 400)
    assert "shorter names" in error["message"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\nname = "thesis"\n'),
        ("rnn-engine.toml", 'model = ["one.st"]\nport = 80\n'),
        ("empty.toml", "# notes\n"),
        ("mixed.toml", '[model]\nname = "a"\n[mine]\na = 1\n'),
        ("broken.toml", "[model"),
        ("deep.toml", "a = " + "[" * 5000),
    ],
)
async def test_settings_do_not_replace_what_is_no_config(client: Client, models: Path, name: str, text: str) -> None:
    (models / name).write_text(text)
    response = await client.post(SAVE_CONFIG, json={"path": name, "config": {}})
    assert (models / name).read_text() == text
    assert (await error_of(response, 400))["param"] == "path"


async def test_settings_are_not_written_through_a_link(client: Client, models: Path) -> None:
    outside = models.parent / "outside" / "Config.toml"
    outside.write_text("[model]\n")
    (models / "Config.toml").symlink_to(outside)
    await error_of(await client.post(SAVE_CONFIG, json={"path": "Config.toml", "config": {}}), 403)
    assert outside.read_text() == "[model]\n"
    (models / "folder.toml").mkdir()
    await error_of(await client.post(SAVE_CONFIG, json={"path": "folder.toml", "config": {}}), 400)


@pytest.mark.parametrize("manifest", ["", "[]", "{", '{"files": []}', '{"files": {"thesis.txt": [1]}}', "[" * 5000])
async def test_a_forged_or_damaged_list_replaces_nothing(client: Client, models: Path, manifest: str) -> None:
    (models / "valuable" / ".rnn-engine.json").write_text(manifest)
    error = await error_of(await client.post(SAVE, json={"path": "valuable", "overwrite": True}), 400)
    assert "holds 'thesis.txt'" in error["message"]
    assert (models / "valuable" / "thesis.txt").read_text() == "years of work"


async def test_a_list_is_written_for_people_to_read(client: Client, models: Path) -> None:
    await post(client, SAVE, WrittenFile, {"path": "saved"})
    listed = json.loads((models / "saved" / ".rnn-engine.json").read_text())
    assert set(listed["files"]) == {"config.json", "model.safetensors"}
