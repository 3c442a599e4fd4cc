"""Archives and settings that admins handle through ai00's routes: the effects, and the refusals."""

from __future__ import annotations

import json
import stat
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rnn_engine_server.apis.ai00.files import Ai00Config, WrittenFile
from rnn_engine_server.core.settings import Limits, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve, error_of, post

UNZIP, LOAD, SAVE = "/admin/files/unzip", "/admin/files/config/load", "/admin/files/config/save"
CONFIG = """
[model]
embed_device = "Cpu"
name = "a.st"
quant_type = "Int8"
stop = ["\\n\\n"]

[[state]]
id = "fd7a60ed-7807-449f-8256-bccae3246222"
path = "b.state"

[adapter]
Auto = {}

[[listen.app_keys]]
app_id = "admin"
secret_key = "ai00_is_good"

[embed]
weight = nan
"""


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("models", "configs", "unzip"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
async def client(serve: Serve, folders: Path) -> Client:
    settings = ServerSettings(
        model_folder=folders / "models",
        admin_folders=(folders / "configs",),
        unzip_folders=(folders / "unzip",),
        limits=Limits(max_unzip_bytes=1000, max_unzip_files=5),
    )
    return await serve(FakeEngine(), settings)


def pack(path: Path, **files: str | bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def test_an_archive_takes_the_place_of_what_was_there(
    client: Client, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(folders / "models" / "a.zip", **{"one.txt": "1", "sub/two.txt": "22"})
    monkeypatch.chdir(folders)
    for body in ({"path": "a.zip", "output": "unzip/web"}, {"zip_path": "models/a.zip", "target_dir": "web"}):
        written = await post(client, UNZIP, WrittenFile, body)
        assert written == {"path": str(folders / "unzip" / "web"), "size": 3}
        assert files_in(folders / "unzip") == [
            "web",
            "web/.rnn-engine.json",
            "web/one.txt",
            "web/sub",
            "web/sub/two.txt",
        ]
        old = folders / "unzip" / "web" / "old.txt"
        old.touch()
        refused = await error_of(await client.post(UNZIP, json=body), 400)
        assert (refused["param"], "it holds 'old.txt'" in refused["message"]) == ("output", True)
        old.unlink()


def of_names(*names: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "x")

    return make


def with_link(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")


def with_bomb(path: Path) -> None:
    pack(path, bomb=b"0" * 1001)


def with_lie(path: Path) -> None:
    """Write an archive whose table says that its file is empty."""
    pack(path, bomb=b"0" * 5000)
    data = path.read_bytes()
    place = data.rindex(b"PK\x01\x02") + 24
    path.write_bytes(data[:place] + bytes(4) + data[place + 4 :])


def damaged(path: Path) -> None:
    pack(path, a=b"abc" * 99)
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (of_names("../x"), "files all lie in the folder"),
        (of_names("a/../../x"), "files all lie in the folder"),
        (of_names("/x"), "files all lie in the folder"),
        (of_names("C:\\x"), "files all lie in the folder"),
        (of_names("..\\x"), "files all lie in the folder"),
        (of_names("a", "a/b"), "names do not collide"),
        (of_names(*"abcdef"), "at most 5 files (max_unzip_files)"),
        (with_link, "without links"),
        (with_bomb, "at most 1000 bytes (max_unzip_bytes)"),
        (with_lie, "a zip archive that can be read"),
        (damaged, "a zip archive that can be read"),
        (lambda path: path.write_bytes(b"no archive"), "a zip archive that can be read"),
    ],
)
async def test_archives_that_are_refused_leave_what_is_there(
    client: Client, folders: Path, make: Callable[[Path], object], words: str
) -> None:
    make(folders / "models" / "a.zip")
    (folders / "unzip" / "web").mkdir()
    error = await error_of(await client.post(UNZIP, json={"path": "a.zip", "output": "web"}), 400)
    assert error["param"] == "path"
    assert words in error["message"]
    assert files_in(folders) == ["configs", "models", "models/a.zip", "unzip", "unzip/web"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (UNZIP, {"path": "../a.zip", "output": "web"}, 403),
        (UNZIP, {"path": "none.zip", "output": "web"}, 404),
        (UNZIP, {"path": "a.zip", "output": "../models"}, 403),
        (UNZIP, {"path": "a.zip", "output": "../configs/x"}, 403),
        (UNZIP, {"path": "a.zip", "output": "."}, 403),
        (UNZIP, {"path": "a.zip", "output": "link/x"}, 403),
        (UNZIP, {"path": "a.zip", "output": "/etc"}, 403),
        (UNZIP, {"path": "a.zip", "output": "a\0b"}, 403),
        (LOAD, {"path": "/etc/passwd"}, 403),
        (LOAD, {"path": "none.toml"}, 404),
        (LOAD, {"path": "a.zip"}, 400),
        (LOAD, {"path": "."}, 400),
        (SAVE, {"path": "../x.toml", "config": {}}, 403),
        (SAVE, {"path": "x.st", "config": {}}, 403),
        (SAVE, {"path": "none/x.toml", "config": {}}, 507),
        (SAVE, {"path": "x.toml", "config": {"model": {"quant": -1}}}, 400),
        (SAVE, {"path": "x.toml"}, 400),
    ],
)
async def test_places_that_are_refused(client: Client, folders: Path, path: str, body: Body, status: int) -> None:
    pack(folders / "models" / "a.zip", a="1")
    (folders / "unzip" / "link").symlink_to(folders / "configs")
    before = files_in(folders)
    await error_of(await client.post(path, json=body), status)
    assert files_in(folders) == before


async def test_settings_are_read_with_the_defaults_and_written_whole(client: Client, folders: Path) -> None:
    file = folders / "configs" / "Config.toml"
    file.write_text(CONFIG)
    config = await (await client.post(LOAD, json={"path": str(file)})).json()
    model = {"path": "assets/models", "name": "a.st", "quant": 0, "quant_type": "Int8", "precision": "Fp16"}
    assert config["model"] == {**model, "token_chunk_size": 128, "max_batch": 8}
    assert (config["adapter"], config["listen"]["port"], config["web"]) == ({"Auto": {}}, 65530, None)
    assert config["listen"]["app_keys"] == [{"app_id": "admin", "secret_key": "ai00_is_good"}]
    assert config["state"][0]["id"] == "fd7a60ed-7807-449f-8256-bccae3246222"
    config["embed"] = None
    config["model"]["max_batch"] = 3
    for path, target in ((SAVE, "Config.toml"), (SAVE, "new.toml"), ("/api/files/config/save", "new.toml")):
        body = {"path": str(folders / "configs" / target), "config": config}
        written = await post(client, path, WrittenFile, body)
        text = (folders / "configs" / target).read_text()
        assert written["size"] == len(text)
        assert Ai00Config.model_validate(tomllib.loads(text)) == Ai00Config.parse(json.dumps(config).encode())
    assert files_in(folders / "configs") == ["Config.toml", "new.toml"]


async def test_without_folders_nothing_is_unpacked(serve: Serve, folders: Path) -> None:
    pack(folders / "models" / "a.zip", a="1")
    settings = ServerSettings(model_folder=folders / "models")
    client = await serve(FakeEngine(), settings)
    error = await error_of(await client.post(UNZIP, json={"path": "a.zip", "output": "web"}), 404)
    assert "--unzip-folder" in error["message"]
