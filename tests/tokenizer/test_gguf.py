"""The vocabulary in a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rnn_engine.errors import InvalidRequestError, TokenizerError
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.tokenizer.world import WorldTokenizer
from rnn_engine.types import end_of_text
from tests.support.gguf import metadata, save_gguf, write_gguf
from tests.support.models import random_model, tiny_shape

PIECES = [b"", b"a", b"ab", b"b", b"'", b"\\'", b'"', b"\n\t\r", b"\xff", "é".encode()]
MODEL = random_model(tiny_shape(layers=1, width=16), seed=1)


def escaped(piece: bytes) -> bytes:
    """Return a piece as llama.cpp's converter writes it."""
    return repr(piece)[2:-1].encode()


def test_byte_strings_are_unescaped_and_the_longest_is_taken(tmp_path: Path) -> None:
    path = save_gguf(MODEL, tmp_path / "model.gguf", tokens=[b"<s>", *map(escaped, PIECES[1:])])
    tokenizer = load_tokenizer("auto", path, 96)
    assert (tokenizer.name, tokenizer.size) == ("gguf", len(PIECES))
    assert [tokenizer.decode_bytes(token) for token in range(-1, 11)] == [b"", *PIECES, b""]
    assert tokenizer.encode("abaé\\'\n\t\r") == [2, 1, 9, 5, 7]
    with pytest.raises(InvalidRequestError, match="text whose bytes are all in the vocabulary, which lacks 0x63"):
        tokenizer.encode("abc")


def test_the_world_vocabulary_is_known_again(tmp_path: Path) -> None:
    world = WorldTokenizer()
    tokens = [b"<s>", *(escaped(world.decode_bytes(token)) for token in range(1, world.size))]
    path = write_gguf(tmp_path / "model.gguf", "rwkv7", metadata(MODEL.shape), {}, tokens=tokens)
    assert load_tokenizer("auto", path, 65536).name == "world"


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(TokenizerError, match="damaged or truncated GGUF file"):
        load_tokenizer("auto", path, 96)


TEXTS = [
    "It's 2026, isn't it?",
    "naïve café",
    "日本語 and 中文",
    "  two  spaces\n\n\tlines  ",
    "<|im_start|>user\nHi<|im_end|>",
]


def qwen2_library() -> Tokenizer:
    """Return a small tokenizer with the steps of Qwen2's tokenizer.json."""
    library = Tokenizer(models.BPE())
    library.normalizer = normalizers.NFC()
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    words += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    steps = [pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    library.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    library.add_tokens(["<tool_call>"])
    return library


def bpe_metadata(library: Tokenizer, **changes: object) -> dict[str, object]:
    """Return the metadata that llama.cpp's converter writes for a tokenizer.json."""
    vocabulary = {token: text for text, token in library.get_vocab().items()}
    added = library.get_added_tokens_decoder()
    kinds = {token: 3 if each.special else 4 for token, each in added.items()}
    merges = json.loads(library.to_str())["model"]["merges"]
    values = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": [*(vocabulary[token] for token in range(len(vocabulary))), "[PAD]"],
        "token_type": [*(kinds.get(token, 1) for token in range(len(vocabulary))), 5],
        "merges": [" ".join(merge) for merge in merges],
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def test_a_byte_level_bpe_is_that_of_the_tokenizer_json(tmp_path: Path) -> None:
    library = qwen2_library()
    library.save(str(tmp_path / "tokenizer.json"))
    path = write_gguf(tmp_path / "model.gguf", "rwkv6qwen2", bpe_metadata(library), {})
    tokenizer = load_tokenizer("auto", path, 400)
    other = load_tokenizer(str(tmp_path / "tokenizer.json"), path, 400)
    assert (tokenizer.size, tokenizer.special_tokens) == (other.size, other.special_tokens)
    for text in (*TEXTS, "".join(TEXTS), "<tool_call>{}"):
        assert tokenizer.encode(text) == library.encode(text).ids == other.encode(text)
    for token in range(tokenizer.size + 1):
        assert tokenizer.decode_bytes(token) == other.decode_bytes(token)
    assert end_of_text(tokenizer.special_tokens) == library.token_to_id("<|endoftext|>") != 0


def test_the_end_of_a_text_is_token_0_unless_that_is_plain_text() -> None:
    assert end_of_text({}) == end_of_text({"<|padding|>": 1, "<|endoftext|>": 0}) == 0
    assert end_of_text({"<|im_end|>": 9, "<|endoftext|>": 7}) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "llama3"}, "tokenizer.ggml.pre is 'llama3'; expected one of qwen2, deepseek-r1-qwen"),
        ({"merges": None}, "expected tokenizer.ggml.merges"),
        ({"merges": ["a"]}, "is not the file of a byte-level BPE"),
        ({"token_type": [1]}, "expected tokenizer.ggml.tokens, and a tokenizer.ggml.token_type for each of them"),
    ],
)
def test_a_bpe_that_can_not_be_used_is_an_error(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "rwkv6qwen2", bpe_metadata(qwen2_library(), **changes), {})
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer("auto", path, 400)
