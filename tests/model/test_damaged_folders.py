"""Hugging Face folders whose files contradict each other or lie elsewhere are refused. The error names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from tests.model.test_hf_folders import refusal
from tests.support.hf import save_hf
from tests.support.models import random_model, tiny_shape

MODEL = random_model(tiny_shape(layers=1, head_size=64), seed=1, layer0_v=False)
INDEX = "model.safetensors.index.json"
SHARDS = tuple(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
HEAD = "lm_head.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_hf(MODEL, tmp_path / "folder", "fla", 3)


def change_map(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def test_a_shard_that_is_missing(folder: Path) -> None:
    (folder / SHARDS[1]).unlink()
    assert refusal(folder) == (
        f"FOLDER/{INDEX} lists 1 file that the folder lacks: {SHARDS[1]}; is the download complete?"
    )


def test_a_shard_that_is_truncated(folder: Path) -> None:
    path = folder / SHARDS[1]
    sound = path.read_bytes()
    for size in (0, 4, 100, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:size])
        assert refusal(folder).startswith(f"FOLDER/{SHARDS[1]}")


def test_one_shard_under_two_names(folder: Path) -> None:
    (folder / SHARDS[1]).write_bytes((folder / SHARDS[0]).read_bytes())
    assert refusal(folder).startswith(f"FOLDER/{SHARDS[1]} lacks ")


def test_a_tensor_in_another_shard_than_the_index_says(folder: Path) -> None:
    place = json.loads((folder / INDEX).read_text())["weight_map"][HEAD]
    other = next(shard for shard in SHARDS if shard != place)
    said = refusal(change_map(folder, lambda places: places.update({HEAD: other})))
    assert said in (
        f"FOLDER/{other} lacks 1 tensor that {INDEX} places there: {HEAD}",
        f"FOLDER/{place} has 1 tensor that {INDEX} does not place there: {HEAD}",
    )


def test_a_tensor_that_the_index_does_not_list(folder: Path) -> None:
    said = refusal(change_map(folder, lambda places: places.pop(HEAD)))
    assert said.endswith(f"has 1 tensor that {INDEX} does not place there: {HEAD}")


def test_a_tensor_that_no_shard_has(folder: Path) -> None:
    said = refusal(change_map(folder, lambda places: places.update({"model.more": SHARDS[0]})))
    assert said == f"FOLDER/{SHARDS[0]} lacks 1 tensor that {INDEX} places there: model.more"


@pytest.mark.parametrize(
    "place",
    [
        "../secret",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "c:x",
        "..",
        ".",
        "",
        "a\0b",
        "a" * 300,
        "\U0001f4a5" * 70,
        7,
        None,
        [],
    ],
)
def test_a_place_outside_the_folder(folder: Path, place: object) -> None:
    (folder.parent / "secret").write_bytes((folder / SHARDS[0]).read_bytes())
    said = refusal(change_map(folder, lambda places: places.update({HEAD: place})))
    assert said.startswith(f"FOLDER/{INDEX}: tensor {HEAD} is in ")
    assert said.endswith("expected the name of a file in the same folder")


def test_more_shards_than_files_can_be_open(folder: Path) -> None:
    said = refusal(change_map(folder, lambda places: places.update({f"t{n}": f"f{n}" for n in range(600)})))
    assert said == f"FOLDER/{INDEX} lists 603 files; expected at most 512"


@pytest.mark.parametrize("content", [b"{}", b'{"weight_map": {}}', b'{"weight_map": []}', b"{", b"[]"])
def test_an_index_that_lists_nothing(folder: Path, content: bytes) -> None:
    (folder / INDEX).write_bytes(content)
    assert refusal(folder).startswith(f"FOLDER/{INDEX}")


def test_an_index_that_lists_a_tensor_twice(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace('"weight_map": {', f'"weight_map": {{"{HEAD}": "{SHARDS[0]}", '))
    assert refusal(folder) == f"FOLDER/{INDEX} is not valid JSON: {HEAD} occurs twice"


def test_a_tensor_in_two_shards(folder: Path) -> None:
    def copy_into_all(places: dict[str, Any]) -> None:
        places.update(dict.fromkeys(places, SHARDS[0]))

    assert refusal(change_map(folder, copy_into_all)).startswith(f"FOLDER/{SHARDS[0]} lacks ")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert refusal(tmp_path) == (
        "FOLDER has no model file; expected one of model.safetensors, model.safetensors.index.json, "
        "pytorch_model.bin, pytorch_model.bin.index.json"
    )


def test_a_shard_that_is_cut_while_it_is_open(folder: Path) -> None:
    with open_model(folder) as opened:
        for shard in SHARDS:
            (folder / shard).write_bytes(b"")
        with pytest.raises(ModelError, match=r"model-0000\d-of-00003.safetensors changed while it was read"):
            opened.tensor("head.weight")
