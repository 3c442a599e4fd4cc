"""The choice of a model's tokenizer, and the error if none fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyrwkv_tokenizer import RWKVTokenizer
from tokenizers import Tokenizer, decoders, models

from rnn_engine.errors import InvalidRequestError, TokenizerError
from rnn_engine.tokenizer import NoTokenizer, load_tokenizer


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def write_tokenizer(path: Path, size: int) -> None:
    library = Tokenizer(models.WordLevel({f"w{number}": number for number in range(size)}, unk_token="w0"))
    library.decoder = decoders.Fuse()
    library.save(str(path))


@pytest.mark.parametrize("vocab_size", [65530, 65536])
def test_auto_takes_world_for_a_vocabulary_of_its_size(model_path: Path, vocab_size: int) -> None:
    tokenizer = load_tokenizer("auto", model_path, vocab_size)
    assert (tokenizer.name, tokenizer.size) == ("world", 65530)


@pytest.mark.parametrize("vocab_size", [12, 50277, 65529, 65537])
def test_auto_takes_none_for_any_other_and_says_why(model_path: Path, vocab_size: int) -> None:
    tokenizer = load_tokenizer("auto", model_path, vocab_size)
    assert isinstance(tokenizer, NoTokenizer)
    assert tokenizer.size == vocab_size
    assert f"its folder has no tokenizer.json, and its vocabulary of {vocab_size} is not World's" in tokenizer.reason


@pytest.mark.parametrize("vocab_size", [12, 65536])
def test_auto_prefers_the_file_beside_the_model(model_path: Path, vocab_size: int) -> None:
    write_tokenizer(model_path.parent / "tokenizer.json", 12)
    tokenizer = load_tokenizer("auto", model_path, vocab_size)
    assert (tokenizer.name, tokenizer.size, tokenizer.encode("w7")) == ("tokenizer.json", 12, [7])


def test_a_choice_overrides_the_file_beside_the_model(model_path: Path) -> None:
    write_tokenizer(model_path.parent / "tokenizer.json", 12)
    assert load_tokenizer("world", model_path, 65536).name == "world"
    assert load_tokenizer("none", model_path, 65536).name == "none"


def test_a_file_by_its_path(model_path: Path) -> None:
    path = model_path.parent / "mine.json"
    write_tokenizer(path, 5)
    assert load_tokenizer(str(path), model_path, 12).decode_bytes(4) == b"w4"


@pytest.mark.parametrize("choice", ["World", "", "missing.json"])
def test_an_unknown_choice_is_refused(model_path: Path, choice: str) -> None:
    with pytest.raises(TokenizerError, match=f"tokenizer '{choice}': no such file; expected auto, world, none or a"):
        load_tokenizer(choice, model_path, 12)


@pytest.mark.parametrize("choice", ["world", "auto", "file"])
def test_a_vocabulary_that_does_not_fit_shows_both_sizes(model_path: Path, choice: str) -> None:
    path = model_path.parent / "tokenizer.json"
    write_tokenizer(path, 13)
    size = 65530 if choice == "world" else 13
    with pytest.raises(TokenizerError, match=f"has {size} ids and the model's vocabulary 12; expected at most 12"):
        load_tokenizer(str(path) if choice == "file" else choice, model_path, 12)


def test_none_refuses_text_and_has_none(model_path: Path) -> None:
    tokenizer = load_tokenizer("none", model_path, 12)
    assert [tokenizer.decode_bytes(token) for token in range(12)] == [b""] * 12
    with pytest.raises(InvalidRequestError) as caught:
        tokenizer.encode("hello")
    assert str(caught.value) == ("the model has no tokenizer, so it takes token ids and no text: none was chosen")


@pytest.mark.parametrize("name", ["rwkv_vocab_v20230424.txt", "vocab.txt"])
def test_the_vocabulary_in_a_folder_made_for_transformers(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"1 'a' 1\n2 b'\\xff' 1\n3 'a\xc3\xa9' 3\n")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        tokenizer = load_tokenizer("auto", path, 12)
        assert (tokenizer.name, tokenizer.size) == (name, 4)
        assert tokenizer.encode("aaé") == [1, 3]
        assert [tokenizer.decode_bytes(token) for token in range(5)] == [b"", b"a", b"\xff", "aé".encode(), b""]
    write_tokenizer(tmp_path / "tokenizer.json", 12)
    assert load_tokenizer("auto", tmp_path, 12).name == "tokenizer.json"
    assert load_tokenizer(str(tmp_path / name), tmp_path, 12).name == name


def test_a_copy_of_the_world_vocabulary_is_world(tmp_path: Path) -> None:
    (tmp_path / "rwkv_vocab_v20230424.txt").write_bytes(Path(RWKVTokenizer().vocab_filepath).read_bytes())
    assert load_tokenizer("auto", tmp_path, 65536).name == "world"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: ; expected an id, a Python literal and its length"),
        (b"1 'a' 1\n[PAD]\n", "line 2: [PAD]; expected an id"),
        (b"1 [[['a']]] 1\n", "line 1: 1 [[['a']]] 1; expected an id"),
        (b"1 'a' 'b' 2\n", "line 1: 1 'a' 'b' 2; expected an id"),
        (b"1 'a' 2\n", "token 1 has 1 bytes; expected 2, as its line says"),
        (b"1 'a' 1\n1 'b' 1\n", "has an id twice, or one above 1048575"),
        (b"9999999 'a' 1\n", "has an id twice, or one above 1048575"),
        (b"1 '\\ud800' 3\n", "token 1 has no form in UTF-8"),
        (b"1 '\\N{NO SUCH}' 1\n", "has a literal that Python can't read"),
        (b"1 b'\xc3\xa9' 2\n", "has a literal that Python can't read"),
        (b"\xff", "is not valid UTF-8"),
        (b"1 'a' 1\n" * (3 << 20), "bytes; expected at most 16777216"),
    ],
    ids=range(12),
)
def test_a_vocabulary_that_is_damaged(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer("auto", tmp_path, 12)
    assert str(caught.value).startswith(f"{tmp_path / 'vocab.txt'}")
    assert message in str(caught.value)
