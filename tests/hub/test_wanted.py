"""The files that a name stands for."""

from __future__ import annotations

import pytest

from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.hub import KNOWN, Wanted, could_be_wanted

FILES = [
    "README.md",
    "rwkv7-g1-0.1b-20250307-ctx4096.pth",
    "rwkv7-g1d-0.1b-20260129-ctx8192.pth",
    "rwkv7a-g1b-0.1b-20260819-ctx4096.pth",
    "rwkv7-g1d-0.4b-20260210-ctx8192.pth",
]


def test_a_short_name_is_the_newest_file_of_its_size() -> None:
    assert Wanted.parse("rwkv7-0.1b").choose(FILES) == ["rwkv7-g1d-0.1b-20260129-ctx8192.pth"]
    assert Wanted.parse("rwkv7-0.4b").choose(FILES) == ["rwkv7-g1d-0.4b-20260210-ctx8192.pth"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("rwkv7-13.3b", "rwkv7-g1k-13.3b-20260930-ctx25600.pth"),
        ("rwkv7-world-0.4b", "RWKV-x070-World-0.4B-v2.9-20250107-ctx4096.pth"),
        ("rwkv7-world-1.5b", "RWKV-x070-World-1.5B-v3-20250127-ctx4096.pth"),
        ("rwkv6-1.6b", "RWKV-x060-World-1B6-v2.1-20240328-ctx4096.pth"),
        ("rwkv5-0.4b", "RWKV-5-World-0.4B-v2-20231113-ctx4096.pth"),
        ("rwkv4-0.4b", "RWKV-4-World-0.4B-v1-20230529-ctx4096.pth"),
    ],
)
def test_short_names_fit_the_names_of_published_files(name: str, file: str) -> None:
    assert KNOWN[name].choose([*FILES, file]) == [file]


def test_a_size_that_is_missing_is_told_with_what_there_is() -> None:
    with pytest.raises(ModelError, match=r"no such weights file; BlinkDL/rwkv7-g1 has rwkv7-g1d-0.4b-20260210"):
        Wanted.parse("rwkv7-2.9b").choose([FILES[-1]])


def test_a_repository_of_several_models_needs_a_file() -> None:
    with pytest.raises(ModelError, match=r"expected one weights file; choose one as a/b:FILE. It has .*rwkv7-g1-0.1b"):
        Wanted.parse("a/b").choose(FILES)
    assert Wanted.parse("a/b:rwkv7-g1-*").choose(FILES) == [FILES[1]]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (["model.safetensors", "pytorch_model.bin"], ["model.safetensors"]),
        (
            ["model-1-of-2.safetensors", "model-2-of-2.safetensors"],
            ["model-1-of-2.safetensors", "model-2-of-2.safetensors"],
        ),
        (["pytorch_model.bin", "training_args.bin", "gguf/a.gguf"], ["pytorch_model.bin"]),
    ],
)
def test_a_folder_is_its_texts_and_one_kind_of_weights(files: list[str], wanted: list[str]) -> None:
    texts = ["config.json", "tokenizer.json", "rwkv_vocab_v20230424.txt"]
    assert Wanted.parse("a/b").choose(["README.md", *texts, *files]) == [*texts, *wanted]


def test_a_split_model_comes_with_all_its_parts() -> None:
    parts = [f"Q4/model-q4-0000{number}-of-00002.gguf" for number in (1, 2)]
    other = "model-q8-00001-of-00001.gguf"
    assert Wanted("a/b").choose(["README.md", *parts]) == parts
    for pattern in ("*q4*", parts[0], parts[1]):
        assert Wanted("a/b", pattern).choose([other, *parts]) == parts
    with pytest.raises(ModelError, match="expected one weights file"):
        Wanted("a/b").choose([other, *parts])


def test_a_repository_without_weights_is_told() -> None:
    with pytest.raises(ModelError, match="It has none"):
        Wanted.parse("a/b").choose(["README.md"])


@pytest.mark.parametrize("text", ["", "rwkv7", "a/b/c", "a/b:", "/a", "a/", "a b/c", "rwkv7-0.1b:x.pth"])
def test_what_names_no_model_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"OWNER/REPOSITORY\[:FILE\] or one of rwkv7-0.1b"):
        Wanted.parse(text)


def test_a_mistyped_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidRequestError, match=r"unknown model 'rwkv7-01b'; did you mean rwkv7-0\.1b\?"):
        Wanted.parse("rwkv7-01b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rwkv7-0.1b", True),
        ("a/b", True),
        ("a/b:c.pth", True),
        ("a/b.pth", False),
        ("b.pth", False),
        ("/a/b", False),
        ("a/b/c", False),
        ("..", False),
    ],
)
def test_what_could_be_a_name_is_told_from_paths(text: str, expected: bool) -> None:
    assert could_be_wanted(text) is expected
