"""Tokenizers from a tokenizer.json: the same ids as the library's, and the raw bytes of every single id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from rnn_engine.errors import InvalidRequestError, TokenizerError
from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer, byte_level_alphabet, piece_decoder

CORPUS = ["the quick brown fox jumps over the lazy dog", "naïve café, 日本語 and 中文", "  two  spaces\n\nlines"]


def save(library: Tokenizer, tmp_path: Path) -> HuggingFaceTokenizer:
    path = tmp_path / "tokenizer.json"
    library.save(str(path))
    return HuggingFaceTokenizer(path)


def byte_level_library() -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    return library


def sentencepiece_library() -> Tokenizer:
    """Return a tokenizer like llama's: ▁ for a space, and a piece for every byte."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"helo", "he", "ll", "▁he"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    merges = [("h", "e"), ("l", "l"), ("▁", "he")]
    library = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(steps)
    return library


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    return save(byte_level_library(), tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    return save(sentencepiece_library(), tmp_path_factory.mktemp("sentencepiece"))


def decode(tokenizer: HuggingFaceTokenizer, tokens: list[int]) -> bytes:
    return b"".join(tokenizer.decode_bytes(token) for token in tokens)


def test_alphabet_is_the_library_s() -> None:
    alphabet = byte_level_alphabet()
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["a"]) == (0x20, 0x0A, 0x61)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text(max_size=30))
def test_byte_level_text_comes_back(byte_level: HuggingFaceTokenizer, text: str) -> None:
    tokens = byte_level.encode(text)
    assert decode(byte_level, tokens) == text.encode()
    assert all(0 <= token < byte_level.size for token in tokens)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text(st.sampled_from("helo wé\n日\x00\U0001f600"), max_size=30))
def test_sentencepiece_text_comes_back(sentencepiece: HuggingFaceTokenizer, text: str) -> None:
    assert decode(sentencepiece, sentencepiece.encode(text)) == text.encode()


def test_pieces_may_be_parts_of_a_character(byte_level: HuggingFaceTokenizer) -> None:
    tokens = byte_level.encode("\U0001f600")
    assert [byte_level.decode_bytes(token) for token in tokens] == [b"\xf0", b"\x9f", b"\x98", b"\x80"]


def test_a_piece_outside_the_byte_alphabet_is_plain_text() -> None:
    assert piece_decoder({"type": "ByteLevel"})("a é") == "a é".encode()


def test_byte_pieces_and_spaces_of_sentencepiece(sentencepiece: HuggingFaceTokenizer) -> None:
    tokens = sentencepiece.encode(" hello\né")
    assert [sentencepiece.decode_bytes(token) for token in tokens] == [b" he", b"ll", b"o", b"\n", b"\xc3", b"\xa9"]


def test_metaspace(tmp_path: Path) -> None:
    library = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "?": 2}, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    tokenizer = save(library, tmp_path)
    assert decode(tokenizer, tokenizer.encode("a b")) == b" a b"


def test_special_tokens_have_no_text_and_other_added_tokens_do(tmp_path: Path) -> None:
    library = byte_level_library()
    library.add_special_tokens(["<|end|>"])
    library.add_tokens([AddedToken("  é", normalized=False)])
    tokenizer = save(library, tmp_path)
    end, spaces = (library.get_vocab()[name] for name in ("<|end|>", "  é"))
    assert (tokenizer.decode_bytes(end), tokenizer.decode_bytes(spaces)) == (b"", "  é".encode())
    assert tokenizer.size == max(end, spaces) + 1


def test_text_that_spells_an_added_token_becomes_it_and_other_text_does_not(tmp_path: Path) -> None:
    library = byte_level_library()
    library.add_special_tokens(["<|end|>"])
    tokenizer = save(library, tmp_path)
    assert tokenizer.encode("<|end|>") == [library.token_to_id("<|end|>")]
    for text in ("<|start|>", "<|end|", "<s>"):
        assert decode(tokenizer, tokenizer.encode(text)) == text.encode()


def test_nothing_is_put_around_a_text_and_nothing_is_cut(tmp_path: Path) -> None:
    plain = byte_level_library()
    library = byte_level_library()
    library.add_special_tokens(["<s>"])
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", library.token_to_id("<s>"))]
    )
    library.enable_truncation(4)
    library.enable_padding(length=200)
    assert save(library, tmp_path).encode(CORPUS[0]) == plain.encode(CORPUS[0]).ids


def test_size_counts_gaps_in_the_ids(tmp_path: Path) -> None:
    library = Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    library.decoder = decoders.Fuse()
    tokenizer = save(library, tmp_path)
    assert tokenizer.size == 10
    assert [tokenizer.decode_bytes(token) for token in (0, 5, 9, 10, -1)] == [b"a", b"", b"b", b"", b""]


def test_half_of_a_surrogate_pair_is_refused(byte_level: HuggingFaceTokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="expected Unicode text without unpaired surrogates"):
        byte_level.encode("a\ud83d")


def test_text_that_the_vocabulary_can_not_express_is_refused(tmp_path: Path) -> None:
    library = Tokenizer(models.WordLevel({"a": 0}))
    library.decoder = decoders.Fuse()
    with pytest.raises(InvalidRequestError, match="text: 'b' is not allowed; expected text that the tokenizer can"):
        save(library, tmp_path).encode("b")


@pytest.mark.parametrize(
    ("decoder", "found"),
    [
        (None, "none"),
        (decoders.WordPiece(), "WordPiece"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.Sequence([decoders.CTC(), decoders.Fuse()]), "CTC, Fuse"),
    ],
)
def test_decoders_whose_pieces_have_no_bytes_are_refused(
    decoder: decoders.Decoder | None, found: str, tmp_path: Path
) -> None:
    library = Tokenizer(models.WordLevel({"a": 0}))
    if decoder is not None:
        library.decoder = decoder
    with pytest.raises(TokenizerError, match=f"tokenizer.json: the tokenizer's decoder is {found}; expected ByteLevel"):
        save(library, tmp_path)


def test_a_decoder_by_regular_expression_is_refused() -> None:
    step = {"type": "Replace", "pattern": {"Regex": "a+"}, "content": " "}
    with pytest.raises(TokenizerError, match="Replace by a regular expression"):
        piece_decoder(step)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", json.dumps({"model": {"type": "BPE"}}), "\x80"])
def test_a_damaged_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(TokenizerError, match=r"is not a Hugging Face tokenizer\.json"):
        HuggingFaceTokenizer(path)


def test_a_file_at_which_the_library_panics_is_refused(tmp_path: Path) -> None:
    content = json.loads(byte_level_library().to_str())
    content["model"]["continuing_subword_prefix"] = "longer than any token"
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"is not a Hugging Face tokenizer\.json: range end index"):
        HuggingFaceTokenizer(path)


@pytest.mark.parametrize(("kind", "count"), [("ByteLevel", 2), ("Digits", 17)])
def test_steps_that_could_make_a_short_text_endless_are_refused(kind: str, count: int, tmp_path: Path) -> None:
    content = json.loads(byte_level_library().to_str())
    step = {"type": "Digits", "individual_digits": True} if kind == "Digits" else content["pre_tokenizer"]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [step] * count}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=rf"pre_tokenizer has {count} steps, .*expected at most 16, and one"):
        HuggingFaceTokenizer(path)
