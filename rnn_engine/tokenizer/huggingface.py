"""Tokenize text with the tokenizer in a Hugging Face tokenizer.json, or with the byte-level BPE of a GGUF file.

Text that spells one of the vocabulary's added tokens becomes that token, as with Hugging Face's library; other text in
angle brackets is plain text. No tokens are added before or after a text, and no text is truncated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tokenizers import Encoding
from tokenizers import Tokenizer as LibraryTokenizer

from rnn_engine.errors import InvalidRequestError, TokenizerError, check_text
from rnn_engine.files import read_text
from rnn_engine.pauses import pause

# Turn the pieces of a Hugging Face vocabulary into bytes, one piece at a time.
#
# The library decodes whole sequences, and writes a replacement character if a piece ends inside a character; streaming
# needs the raw bytes of each piece. So the steps of the decoder in the tokenizer's file are applied here to single
# pieces. A step for a whole text, such as dropping the first space, is left out.

_Step: TypeAlias = Mapping[str, Any]

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WHOLE_TEXT_STEPS: Final = frozenset({"Fuse", "Strip"})  # these act only on the joined text
_PIECE_STEPS: Final = frozenset({"ByteLevel", "ByteFallback", "Replace", "Metaspace"})


def piece_decoder(decoder: _Step | None) -> Callable[[str], bytes]:
    """Return a function from a piece of a tokenizer.json to bytes, by its `decoder`. Raises TokenizerError."""
    steps = _flatten(decoder, "decoders")
    kinds = {step["type"] for step in steps}
    if not steps or not kinds <= _PIECE_STEPS | _WHOLE_TEXT_STEPS:
        raise _unsupported(", ".join(sorted(kinds)) or "none")
    replacements = [_replacement(step) for step in steps if step["type"] in ("Replace", "Metaspace")]
    alphabet = byte_level_alphabet()

    def to_bytes(piece: str) -> bytes:
        for old, new in replacements:
            piece = piece.replace(old, new)
        if "ByteLevel" in kinds:
            if all(character in alphabet for character in piece):
                return bytes(alphabet[character] for character in piece)
        elif "ByteFallback" in kinds and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes.fromhex(match[1])
        return piece.encode("utf-8")  # the library, too, treats such a piece as plain text

    return to_bytes


def byte_level_alphabet() -> dict[str, int]:
    """Map each character with which byte-level BPE writes bytes to the byte that it stands for.

    Printable Latin-1 characters stand for their own bytes, characters from U+0100 on for the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def _flatten(step: _Step | None, parts: str) -> list[_Step]:
    """Return the single steps of a tokenizer.json's part, in whose field `parts` sequences are nested."""
    if step is None:
        return []
    return [each for part in step[parts] for each in _flatten(part, parts)] if parts in step else [step]


def _replacement(step: _Step) -> tuple[str, str]:
    """Return the text of a Replace or Metaspace step and its replacement. Raises TokenizerError for a regex."""
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if "String" not in step["pattern"]:
        raise _unsupported("Replace by a regular expression")
    return step["pattern"]["String"], step["content"]


def _unsupported(found: str) -> TokenizerError:
    return TokenizerError(
        f"the tokenizer's decoder is {found}; expected ByteLevel, Metaspace, or a sequence of Replace, ByteFallback, "
        "Fuse and Strip"
    )


# A long text is tokenized in parts, to limit the memory that this takes. The library itself shows where a part may end:
# where a word of its pre-tokenizer begins, since the tokens of one word do not depend on other words.

_PART_CHARACTERS: Final = 1 << 14
_AHEAD: Final = 64  # characters before the end of a part's text in which the text after it may change the words
_AHEAD_WORDS: Final = 2  # the same for its last words, however long they are
_MOST_WHOLE = 1 << 19  # characters; each takes up to 400 bytes of memory for a moment
_MOST_STEPS = 16  # before the model; each may lengthen a text, and enough of them fill any memory
_UNICODE_FORMS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_LOCAL_STEPS: Final = frozenset({"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"})


class HuggingFaceTokenizer:
    """A tokenizer.json's tokenizer. Raises TokenizerError if it can't be read, or has pieces without bytes."""

    def __init__(self, path: Path, part_characters: int = _PART_CHARACTERS, *, text: str | None = None) -> None:
        """Read the file, or its content `text`. Texts longer than `part_characters` will be tokenized in parts."""
        self.name = path.name
        self._library = _load(path, text)
        settings = json.loads(self._library.to_str())
        normalizers, splitters = _steps_before_model(path, settings)
        self._divides = all(map(_is_local_normalizer, normalizers)) and all(
            step["type"] in _LOCAL_STEPS and not step.get("add_prefix_space", False) for step in splitters
        )
        self._normalizes = bool(normalizers)
        self._part_characters = part_characters
        self._pieces = _read_pieces(path, self._library, settings["decoder"])
        added = self._library.get_added_tokens_decoder()
        self._special = [each.content for each in added.values() if each.special]
        self._ahead = max(_AHEAD, *(len(each.content) for each in added.values()), 0)
        self._strips = any(each.lstrip for each in added.values())
        self.special_tokens: Mapping[str, int] = {each.content: token for token, each in added.items()}
        self.size = max(self._pieces, default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text.

        A text without a word's beginning for long is cut anyway: its tokens still spell it. If the tokenizer adds
        something to a text or strips it, so that it can't be cut, a text that is too long raises InvalidRequestError.
        """
        check_text(text)
        if not self._divides and len(text) > _MOST_WHOLE:
            raise InvalidRequestError(
                "text", text, f"at most {_MOST_WHOLE} characters, since the tokenizer can't take a text in parts"
            )
        ids: list[int] = []
        start = 0
        while self._divides and len(text) - start > self._part_characters:
            pause()
            part = text[start : start + self._part_characters]
            encoded = self._encode(part, self._library.encode_batch)
            count, length = self._find_cut(part, encoded)
            if count is None:
                length = self._special_begins(text, start, len(part))
                encoded = self._encode(part[:length], self._library.encode_batch_fast)
            ids += encoded.ids[:count]
            start += length
        return ids + self._encode(text[start:], self._library.encode_batch_fast).ids

    def _find_cut(self, part: str, encoded: Encoding) -> tuple[int | None, int]:
        """Return how many tokens and characters of an encoded part of a text do not depend on the text after it.

        None for the tokens if no word begins where the part can be cut; then the part may be cut anywhere.
        """
        words, offsets = encoded.word_ids, encoded.offsets  # a word's number, and (first, end) characters, by token
        most = len(part) - self._ahead
        begun = 0
        for count in range(len(words) - 1, 0, -1):
            if words[count] == words[count - 1]:
                continue
            begun += 1
            place = offsets[count][0]
            if begun >= _AHEAD_WORDS and 0 < place <= most and self._may_cut(part, place):
                return count, place
        return None, len(part)

    def _may_cut(self, part: str, place: int) -> bool:
        """Return False if normalizing may join characters at this place, or an added token take spaces before it."""
        return not (self._normalizes and not part[place].isascii()) and not (self._strips and part[place - 1].isspace())

    def _special_begins(self, text: str, start: int, length: int) -> int:
        """Return `length`, or less if a part of `text` with that length would end within a special token."""
        end = start + length
        around = (text.find(each, max(start + 1, end - len(each) + 1), end + len(each) - 1) for each in self._special)
        return min((place - start for place in around if place >= 0), default=length)

    def _encode(self, text: str, encode_batch: Callable[..., list[Encoding]]) -> Encoding:
        """Encode a text with one of the library's functions for several, during which other threads run."""
        try:
            with _panics_raised():
                return encode_batch([text], add_special_tokens=False)[0]
        except Exception as error:  # the library raises plain exceptions
            raise InvalidRequestError("text", text, f"text that the tokenizer can encode ({error})") from error

    def decode_bytes(self, token: int) -> bytes:
        return self._pieces.get(token, b"")

    def to_json(self) -> str:
        """Return the content of a tokenizer.json of the same tokenizer."""
        return self._library.to_str()


@contextmanager
def _panics_raised() -> Iterator[None]:
    """Within the `with` block, turn a panic of the tokenizers library, which is no Exception, into RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(str(error)) from error


# The byte-level BPE that GGUF files hold: tokens, merges, and a name for the rule that divides texts into words.

_QWEN2_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: Final[Mapping[str, tuple[str | None, bool]]] = {
    "qwen2": (_QWEN2_WORDS, True),
    "deepseek-r1-qwen": (_QWEN2_WORDS, True),
    "gpt-2": (None, False),
    "olmo": (None, True),
}
"""llama.cpp's name of a rule -> its words as a regular expression, None for GPT-2's, and if texts are put in NFC."""


@dataclass(frozen=True, slots=True)
class Bpe:
    """A byte-level BPE as a GGUF file holds it.

    `tokens` has the text of every id, in the letters of `byte_level_alphabet`. Only those of the ids in `added`, which
    says if they are special, are plain. An unused id has none. A merge is two texts with a space between.
    """

    split: str  # a key of `SPLITS`
    tokens: Sequence[str]
    added: Mapping[int, bool]
    merges: Sequence[str]

    @property
    def settings(self) -> dict[str, Any]:
        """The content of the tokenizer.json of the same tokenizer."""
        pattern, normalizes = SPLITS[self.split]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
        last = {**byte_level, "use_regex": pattern is None}
        words = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        return {
            "added_tokens": [
                {"id": token, "content": self.tokens[token], "special": special, **flags}
                for token, special in self.added.items()
            ],
            "normalizer": {"type": "NFC"} if normalizes else None,
            "pre_tokenizer": last if pattern is None else {"type": "Sequence", "pretokenizers": [words, last]},
            "decoder": {**byte_level, "use_regex": True},
            "model": {
                "type": "BPE",
                "vocab": {text: token for token, text in enumerate(self.tokens) if text and token not in self.added},
                "merges": self.merges,
            },
        }

    @classmethod
    def find(cls, text: str, size: int) -> Bpe | None:
        """Return the BPE of a tokenizer.json with the content `text`, for `size` ids; None if it is another tokenizer.

        It is one only if a tokenizer made of its parts is the same again.
        """
        settings = json.loads(text)
        model, added = settings["model"], {each["id"]: each["content"] for each in settings["added_tokens"]}
        if model["type"] != "BPE" or not model["merges"]:
            return None
        texts = {token: piece for piece, token in model["vocab"].items()} | added
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        for split in SPLITS:
            found = cls(
                split,
                [texts.get(token, "") for token in range(size)],
                {each["id"]: each["special"] for each in settings["added_tokens"]},
                merges,
            )
            made = json.loads(LibraryTokenizer.from_str(json.dumps(found.settings)).to_str())
            if _comparable(made) == _comparable(settings):
                return found
        return None


def _comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what decides about tokens in a tokenizer.json that the library wrote."""
    added = [{name: value for name, value in each.items() if name != "normalized"} for each in settings["added_tokens"]]
    plain = {each["content"] for each in added}
    vocabulary = {piece: token for piece, token in settings["model"]["vocab"].items() if piece not in plain}
    steps = _flatten(settings["pre_tokenizer"], "pretokenizers")
    return {
        "added_tokens": added,
        "normalizer": settings["normalizer"],
        "pre_tokenizer": [{name: value for name, value in step.items() if name != "trim_offsets"} for step in steps],
        "decoder": [step["type"] for step in _flatten(settings["decoder"], "decoders")],
        "model": {**settings["model"], "vocab": vocabulary},
    }


def _load(path: Path, text: str | None) -> LibraryTokenizer:
    try:
        with _panics_raised():
            library = LibraryTokenizer.from_str(read_text(path) if text is None else text)
    except OSError as error:
        raise TokenizerError(f"{path} can't be read: {error.strerror}") from error
    except Exception as error:  # the library raises plain exceptions
        kind = "a Hugging Face tokenizer.json" if text is None else "the file of a byte-level BPE"
        raise TokenizerError(f"{path} is not {kind}: {error}") from error
    library.no_truncation()
    library.no_padding()
    library.post_processor = None  # it adds special tokens, and trims the offsets of words
    return library


def _steps_before_model(path: Path, settings: Mapping[str, Any]) -> tuple[list[_Step], list[_Step]]:
    """Return the steps of normalizer and pre-tokenizer. Raises TokenizerError for too many, which lengthen texts."""
    found = _flatten(settings["normalizer"], "normalizers"), _flatten(settings["pre_tokenizer"], "pretokenizers")
    for name, steps in zip(("normalizer", "pre_tokenizer"), found, strict=True):
        num_byte_levels = sum(step["type"] == "ByteLevel" for step in steps)
        if len(steps) > _MOST_STEPS or num_byte_levels > 1:
            count = f"{len(steps)} steps, {num_byte_levels} of them ByteLevel"
            raise TokenizerError(f"{path}: {name} has {count}; expected at most {_MOST_STEPS}, and one ByteLevel")
    return found


def _is_local_normalizer(step: _Step) -> bool:
    """Return True if a step of a normalizer acts on single characters, so that it can be applied to parts of a text."""
    kind = step["type"]
    return kind in _UNICODE_FORMS or (kind == "Replace" and len(step["pattern"].get("String", "")) == 1)


def _read_pieces(path: Path, library: LibraryTokenizer, decoder: Any) -> dict[int, bytes]:  # noqa: ANN401
    """Map a tokenizer.json's ids to bytes, b"" for special tokens, by its `decoder`. Raises TokenizerError."""
    try:
        to_bytes = piece_decoder(decoder)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from error
    pieces = {token: to_bytes(piece) for piece, token in library.get_vocab(with_added_tokens=False).items()}
    for token, added in library.get_added_tokens_decoder().items():
        pieces[token] = b"" if added.special else added.content.encode("utf-8")
    return pieces
