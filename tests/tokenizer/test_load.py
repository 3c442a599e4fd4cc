"""Which tokenizer a model gets, and what is said where none fits."""

from __future__ import annotations

from pathlib import Path

import pytest
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
    assert f"no tokenizer.json beside it, and its vocabulary of {vocab_size} is not World's" in tokenizer.reason


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
    assert str(caught.value) == (
        "text: 'hello' is not allowed; expected token ids, as the model has no tokenizer: none was asked for"
    )
