"""Long texts are tokenized in parts: the tokens are those of the whole if words are short; else they spell the text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Encoding, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rnn_engine.errors import InvalidRequestError
from rnn_engine.tokenizer import huggingface
from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEMO = json.loads(Path("rnn_engine/demo/tokenizer.json").read_text(encoding="utf-8"))["pre_tokenizer"]["pretokenizers"][
    0
]["pattern"]["Regex"]
PATTERNS = {"demo": DEMO, "llama": LLAMA, "o200k": O200K, "deepseek": DEEPSEEK, "words": r"\s?\p{L}+", "text": "ab"}
HOSTILE = st.text(st.sampled_from("aabA1 \n\t\r'.s<|>é字。\u0301\u3000ſ\x0b-_"), max_size=40) | st.text(max_size=12)
WORDS = ("a", "ab ", " aab.", "11", "1", "\n", " ", "é", "字字", "b's", "'S", "<|a|>", "|>", "\u0301", "\u3000")
LETTERS = "abcdefghijklmno"  # one for each word, since a list of words takes hypothesis far longer to draw than a text
SENTENCES = st.text(LETTERS, min_size=30, max_size=80).map(lambda text: "".join(WORDS[LETTERS.index(c)] for c in text))
CORPUS = ["aa ab  a\n\n\nab", "  \n  \t\t\n", "a's A1 11 111. <|a|>", "é字。字。\n\u0301\u3000é"] * 3


def library(pattern: str | None, *, normalized: bool = False, added: bool = False) -> Tokenizer:
    """Return byte-level BPE that joins what its pre-tokenizer leaves together, with merges over all characters."""
    made = Tokenizer(models.BPE())
    made.decoder = decoders.ByteLevel()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [part[start:] for part in CORPUS for start in range(len(part))],
        trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False),
    )
    if normalized:
        made.normalizer = normalizers.NFC()
    if pattern == "ByteLevel":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, made.pre_tokenizer])
    if added:
        made.add_special_tokens([AddedToken("<|a|>", lstrip=True), AddedToken("|>", rstrip=True)])
        made.add_tokens(["   ", "a.", "1 1"])
    return made


def ids(made: Tokenizer, text: str) -> list[int]:
    return list(made.encode(text, add_special_tokens=False).ids)


def save(made: Tokenizer, folder: Path, part_characters: int) -> HuggingFaceTokenizer:
    path = folder / "tokenizer.json"
    made.save(str(path))
    return HuggingFaceTokenizer(path, part_characters)


def spelled(tokenizer: HuggingFaceTokenizer, tokens: list[int]) -> str:
    return b"".join(map(tokenizer.decode_bytes, tokens)).decode()


@pytest.mark.parametrize("added", [False, True], ids=["plain", "added"])
@pytest.mark.parametrize("normalized", [False, True], ids=["raw", "nfc"])
@pytest.mark.parametrize("name", [*sorted(PATTERNS.keys() - {"text"}), "ByteLevel"])
def test_a_text_in_parts_has_the_tokens_of_the_whole(
    name: str, normalized: bool, added: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "_AHEAD", 8)
    made = library(PATTERNS.get(name, name), normalized=normalized, added=added)
    tokenizer = save(made, tmp_path, part_characters=60)

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(text=SENTENCES)
    def check(text: str) -> None:
        assert tokenizer.encode(text) == ids(made, text)

    check()


@pytest.mark.parametrize("name", [*PATTERNS, "ByteLevel", None])
def test_every_text_in_parts_is_spelled_by_its_tokens(name: str | None, tmp_path: Path) -> None:
    tokenizer = save(library(None if name is None else PATTERNS.get(name, name)), tmp_path, part_characters=3)

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(text=HOSTILE)
    def check(text: str) -> None:
        assert spelled(tokenizer, tokenizer.encode(text)) == text

    check()


@pytest.mark.parametrize("text", ["\n" * 1000, " \t\n" * 400, "a" * 1000, "字" * 450, "word " * 300, "", "a"])
def test_a_text_is_given_to_the_library_in_short_parts(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = save(library(LLAMA), tmp_path, part_characters=100)
    encode, lengths = tokenizer._encode, []

    def note(part: str, encode_batch: Callable[..., list[Encoding]]) -> Encoding:
        lengths.append(len(part))
        return encode(part, encode_batch)

    monkeypatch.setattr(tokenizer, "_encode", note)
    assert spelled(tokenizer, tokenizer.encode(text)) == text
    assert max(lengths) <= 100


@pytest.mark.parametrize("before", range(92, 101))
def test_no_special_token_is_cut(before: int, tmp_path: Path) -> None:
    made = library(None, added=True)
    tokenizer = save(made, tmp_path, part_characters=100)
    text = f"{'a' * before}<|a|>{'a' * 50}"
    assert tokenizer.encode(text).count(tokenizer.special_tokens["<|a|>"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Prepend", "prepend": "_"}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
    ],
)
def test_a_tokenizer_that_adds_something_to_a_text_takes_it_whole_up_to_a_bound(
    change: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "_MOST_WHOLE", 50)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(library(LLAMA).to_str()) | change))
    text = " a\n" * 16
    tokenizer = HuggingFaceTokenizer(path, part_characters=4)
    assert tokenizer.encode(text) == ids(Tokenizer.from_file(str(path)), text)
    with pytest.raises(InvalidRequestError, match="expected at most 50 characters, since the tokenizer can't take"):
        tokenizer.encode(text + "abc")
