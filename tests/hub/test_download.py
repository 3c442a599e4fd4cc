"""Downloads from a stand-in for the hub: whole, cut, damaged, missing, and without a network."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest

from rnn_engine.errors import ModelError
from rnn_engine.hub import Wanted, list_local
from rnn_engine.hub.download import Hub
from tests.support.hub import StandInHub

WEIGHTS = bytes(range(256)) * 400
REPOSITORY = "someone/small-rwkv"
FILE = "small.pth"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's client retry without waiting, and write small pieces. By default it keeps only large pieces."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)


def test_a_file_comes_whole_and_is_not_fetched_again(hub: StandInHub, folder: Path) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS, "README.md": b"about it"}
    path = Hub().pull(Wanted.parse(REPOSITORY))
    assert path == folder / REPOSITORY / FILE
    assert path.read_bytes() == WEIGHTS
    assert Hub().pull(Wanted.parse(f"{REPOSITORY}:{FILE}")) == path
    assert hub.downloads == [(FILE, None)]
    assert [each.name for each in path.parent.iterdir() if not each.name.endswith(".lock")] == [FILE]


def test_a_cut_connection_is_gone_on_from(hub: StandInHub) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS}
    hub.cuts = [60_000]
    assert Hub().pull(Wanted.parse(REPOSITORY)).read_bytes() == WEIGHTS
    assert hub.downloads[0] == (FILE, None)
    [(_, range_)] = hub.downloads[1:]
    assert range_ is not None
    assert 0 < int(range_.removeprefix("bytes=").rstrip("-")) <= 60_000


def test_what_an_earlier_attempt_left_is_gone_on_from(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS}
    hub.cuts = [60_000, *[0] * 20]
    with pytest.raises(ModelError, match=r"can't be reached.*The parts downloaded so far are kept"):
        Hub().pull(Wanted.parse(REPOSITORY))
    hub.cuts, hub.downloads = [], []
    assert Hub().pull(Wanted.parse(REPOSITORY)).read_bytes() == WEIGHTS
    [(_, range_)] = hub.downloads
    assert range_ is not None


def test_what_was_left_of_other_contents_is_not_mixed_in(hub: StandInHub, folder: Path) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS[::-1]}
    hub.cuts = [60_000, *[0] * 20]
    with pytest.raises(ModelError):
        Hub().pull(Wanted.parse(REPOSITORY))
    hub.cuts, hub.repositories[REPOSITORY] = [], {FILE: WEIGHTS}
    assert Hub().pull(Wanted.parse(REPOSITORY)).read_bytes() == WEIGHTS


@pytest.mark.parametrize("file", [FILE, "config.json"])
def test_a_wrong_checksum_is_told_and_the_file_removed(hub: StandInHub, folder: Path, file: str) -> None:
    hub.repositories[REPOSITORY] = {"config.json": b"{}", "model.safetensors": WEIGHTS, FILE: WEIGHTS}
    hub.damages = {file}
    wanted = Wanted(REPOSITORY, FILE if file == FILE else None)
    with pytest.raises(ModelError, match=rf"{REPOSITORY}: {file} has the checksum .* pull it again"):
        Hub().pull(wanted)
    assert not list((folder / REPOSITORY).glob(f"*{file}"))
    assert not list((folder / REPOSITORY).glob(".*.part"))
    hub.damages = set()
    assert Hub().pull(wanted).exists()


def test_a_file_that_was_damaged_here_is_fetched_again(hub: StandInHub) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS}
    path = Hub().pull(Wanted.parse(REPOSITORY))
    path.write_bytes(b"\xff" + WEIGHTS[1:])
    assert Hub().pull(Wanted.parse(REPOSITORY)).read_bytes() == WEIGHTS


def test_a_model_of_several_files_comes_as_a_folder(hub: StandInHub, folder: Path) -> None:
    files = {"config.json": b"{}", "model-1-of-2.safetensors": WEIGHTS, "model-2-of-2.safetensors": WEIGHTS[:100]}
    hub.repositories[REPOSITORY] = {**files, "README.md": b"about it", "old/model.pth": b"old"}
    assert Hub().pull(Wanted.parse(REPOSITORY)) == folder / REPOSITORY
    for name, data in files.items():
        assert (folder / REPOSITORY / name).read_bytes() == data
    assert not (folder / REPOSITORY / "README.md").exists()


def test_all_parts_of_a_split_model_come(hub: StandInHub, folder: Path) -> None:
    parts = {f"model-0000{number}-of-00002.gguf": WEIGHTS[: 100 * number] for number in (1, 2)}
    hub.repositories[REPOSITORY] = {**parts, "README.md": b"about it"}
    assert Hub().pull(Wanted.parse(REPOSITORY)) == folder / REPOSITORY / "model-00001-of-00002.gguf"
    for name, data in parts.items():
        assert (folder / REPOSITORY / name).read_bytes() == data
    [found] = list_local()
    assert (found.path, found.num_bytes) == (folder / REPOSITORY / "model-00001-of-00002.gguf", 300)


def test_a_missing_repository_is_told(hub: StandInHub) -> None:
    with pytest.raises(ModelError, match=f"no/such: {hub.url} has no such repository, or it is private"):
        Hub().pull(Wanted.parse("no/such"))


def test_a_gated_repository_is_told(hub: StandInHub) -> None:
    hub.gated = {REPOSITORY}
    with pytest.raises(ModelError, match=f"accept the terms at {hub.url}/{REPOSITORY} and set HF_TOKEN"):
        Hub().pull(Wanted.parse(REPOSITORY))


@pytest.mark.parametrize(
    "name",
    [
        "../../../x.pth",
        "a/../../../../x.pth",
        "{folder}/x.pth",
        "/{folder}/x.pth",
        "..\\..\\x.pth",
        "C:\\x.pth",
        "C:x.pth",
        "x\n.pth",
        "\x1b[2Jx.pth",
        "x\0.pth",
        "\ud800.pth",
        "x\x85.pth",
    ],
)
def test_a_name_that_leads_out_of_the_folder_is_refused_before_anything_is_fetched(
    hub: StandInHub, folder: Path, name: str
) -> None:
    hub.repositories[REPOSITORY] = {name.format(folder=folder.parent): WEIGHTS}
    with pytest.raises(ModelError, match=r"lists a file .*; expected a path inside of the repository$") as caught:
        Hub().pull(Wanted.parse(REPOSITORY))
    assert str(caught.value).isprintable()
    assert not hub.downloads
    assert not [path for path in folder.parent.rglob("*") if path.is_file()]


def test_one_bad_name_among_the_files_of_a_folder_refuses_all(hub: StandInHub, folder: Path) -> None:
    hub.repositories[REPOSITORY] = {"config.json": b"{}", "model.safetensors": WEIGHTS, "..\\x.json": b"{}"}
    with pytest.raises(ModelError, match=r"lists a file '\.\.\\\\x\.json'; expected"):
        Hub().pull(Wanted.parse(REPOSITORY))
    assert not hub.downloads
    assert not folder.exists()


@pytest.mark.parametrize("link", ["sub", "sub/small.pth", "sub/.small.pth.part"])
def test_no_link_is_followed_out_of_the_folder(hub: StandInHub, folder: Path, tmp_path: Path, link: str) -> None:
    hub.repositories[REPOSITORY] = {"sub/small.pth": WEIGHTS}
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    other, place = tmp_path / "other", folder / REPOSITORY / link.replace(".part", f".{digest[:12]}.part")
    place.parent.mkdir(parents=True)
    other.mkdir()
    target = other if link == "sub" else other / "mine"
    if target is not other:
        target.write_text("mine")
    place.symlink_to(target)
    with pytest.raises(ModelError, match=r"sub/small\.pth would be written to .*other.*; expected a place in "):
        Hub().pull(Wanted.parse(REPOSITORY))
    assert not hub.downloads
    assert [path.read_text() for path in other.iterdir()] == ([] if link == "sub" else ["mine"])


def test_a_name_that_is_too_long_is_told(hub: StandInHub, folder: Path) -> None:
    hub.repositories[REPOSITORY] = {f"{'a' * 300}/small.pth": WEIGHTS}
    with pytest.raises(ModelError, match="File name too long"):
        Hub().pull(Wanted.parse(REPOSITORY))


def test_a_folder_of_models_may_be_a_link(hub: StandInHub, folder: Path, tmp_path: Path) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS}
    (tmp_path / "disk").mkdir()
    folder.symlink_to(tmp_path / "disk")
    assert Hub().pull(Wanted.parse(REPOSITORY)) == folder / REPOSITORY / FILE
    assert (tmp_path / "disk" / REPOSITORY / FILE).read_bytes() == WEIGHTS


@pytest.mark.parametrize("digest", ["../../x", "", "abc", "Z" * 64])
def test_a_checksum_that_is_none_is_told(hub: StandInHub, folder: Path, digest: str) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS}
    hub.digest = digest
    with pytest.raises(ModelError, match=rf"as the checksum of {FILE}"):
        Hub().pull(Wanted.parse(REPOSITORY))
    assert not hub.downloads


def test_no_room_is_told_before_anything_is_fetched(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS}
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(ModelError, match=r"room for 1,000 bytes, and small\.pth needs 102,400 more"):
        Hub().pull(Wanted.parse(REPOSITORY))
    assert not hub.downloads


def test_without_a_network_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(ModelError, match=rf"{url} can't be reached: .*Check the network, or set HF_ENDPOINT"):
            Hub().pull(Wanted.parse(REPOSITORY))


def test_a_password_in_the_address_of_a_mirror_is_not_told(hub: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS}
    hub.gated = {"someone/gated"}
    monkeypatch.setenv("HF_ENDPOINT", hub.url.replace("//", "//ann:secret@"))
    for repository in ("someone/missing", "someone/gated"):
        with pytest.raises(ModelError, match=hub.url) as caught:
            Hub().pull(Wanted.parse(repository))
        assert "secret" not in str(caught.value)


def test_what_is_done_of_a_planned_download_is_told(hub: StandInHub, tmp_path: Path) -> None:
    hub.repositories[REPOSITORY] = {FILE: WEIGHTS}
    client = Hub(folder=tmp_path / "elsewhere")
    download = client.plan(Wanted.parse(REPOSITORY))
    [file] = download.files
    assert (file.num_bytes, download.num_done(file)) == (len(WEIGHTS), 0)
    hub.cuts = [60_000, *[0] * 20]
    with pytest.raises(ModelError):
        client.fetch(download)
    assert 0 < download.num_done(file) < len(WEIGHTS)
    hub.cuts = []
    assert client.fetch(download) == tmp_path / "elsewhere" / REPOSITORY / FILE
    assert download.num_done(file) == len(WEIGHTS)
