"""Tokenize text with the tokenizer in a Hugging Face tokenizer.json.

Text that spells one of the vocabulary's added tokens becomes that token, as with Hugging Face's library; other text in
angle brackets is plain text. No tokens are added before or after a text, and no text is truncated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

from tokenizers import Tokenizer as LibraryTokenizer

from rnn_engine.errors import InvalidRequestError, TokenizerError, check_text
from rnn_engine.files import read_text
from rnn_engine.tokenizer.dividing import PART_CHARACTERS, Divider, flatten

# Turn the pieces of a Hugging Face vocabulary into bytes, one piece at a time.
#
# The library decodes whole sequences, and writes a replacement character if a piece ends inside a character; streaming
# needs the raw bytes of each piece. So the steps of the decoder in the tokenizer's file are applied here to single
# pieces. A step for a whole text, such as dropping the first space, is left out.

PieceDecoder: TypeAlias = Callable[[str], bytes]

_Step: TypeAlias = Mapping[str, Any]

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WHOLE_TEXT_STEPS: Final = frozenset({"Fuse", "Strip"})  # these act only on the joined text
_PIECE_STEPS: Final = frozenset({"ByteLevel", "ByteFallback", "Replace", "Metaspace"})


def piece_decoder(decoder: _Step | None) -> PieceDecoder:
    """Return a function that turns one piece (token text) of a tokenizer.json's vocabulary into bytes.

    `decoder` is the `decoder` object of a tokenizer.json. Raises TokenizerError if it has a step that can't be applied
    to single pieces.
    """
    steps = list(_flatten(decoder))
    kinds = {step["type"] for step in steps}
    if not steps or not kinds <= _PIECE_STEPS | _WHOLE_TEXT_STEPS:
        raise _unsupported(", ".join(sorted(kinds)) or "none")
    replacements = [_replacement(step) for step in steps if step["type"] in ("Replace", "Metaspace")]
    to_bytes = _pick(kinds)
    return lambda piece: to_bytes(_replace(piece, replacements))


def byte_level_alphabet() -> dict[str, int]:
    """Map each character with which byte-level BPE writes bytes to the byte that it stands for.

    Printable Latin-1 characters stand for their own bytes, characters from U+0100 on for the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def _pick(kinds: set[str]) -> PieceDecoder:
    if "ByteLevel" in kinds:
        alphabet = byte_level_alphabet()
        return lambda piece: _from_alphabet(piece, alphabet)
    if "ByteFallback" in kinds:
        return _from_byte_piece
    return lambda piece: piece.encode("utf-8")


def _from_alphabet(piece: str, alphabet: Mapping[str, int]) -> bytes:
    if all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    return piece.encode("utf-8")  # the library also treats such a piece as plain text


def _from_byte_piece(piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.encode("utf-8")


def _flatten(decoder: _Step | None) -> Iterator[_Step]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _flatten(step)
    else:
        yield decoder


def _replacement(step: _Step) -> tuple[str, str]:
    """Return the text that a Replace or Metaspace step of a decoder replaces, and its replacement.

    Raises TokenizerError for a replacement by a regular expression.
    """
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if "String" not in step["pattern"]:
        raise _unsupported("Replace by a regular expression")
    return step["pattern"]["String"], step["content"]


def _replace(piece: str, replacements: Sequence[tuple[str, str]]) -> str:
    for old, new in replacements:
        piece = piece.replace(old, new)
    return piece


def _unsupported(found: str) -> TokenizerError:
    return TokenizerError(
        f"the tokenizer's decoder is {found}; expected ByteLevel, Metaspace, or a sequence of Replace, ByteFallback, "
        "Fuse and Strip"
    )


_MOST_WHOLE = 1 << 19  # characters; each takes up to 400 bytes of memory for a moment
_MOST_STEPS = 16  # before the model; each may lengthen a text, and enough of them fill any memory


class HuggingFaceTokenizer:
    """A tokenizer read from a tokenizer.json.

    Raises TokenizerError if the file can't be read, or if its pieces can't be turned into bytes one by one.
    """

    def __init__(self, path: Path, part_characters: int = PART_CHARACTERS) -> None:
        """Read the tokenizer.json at `path`. A text longer than `part_characters` will be tokenized in parts."""
        self.name = path.name
        self._library = _load(path)
        settings = json.loads(self._library.to_str())
        _check_steps(path, settings)
        self._divider = Divider(settings, part_characters)
        self._pieces = _read_pieces(path, self._library, settings["decoder"])
        added = self._library.get_added_tokens_decoder()
        self.special_tokens: Mapping[str, int] = {each.content: token for token, each in added.items()}
        self.size = max(self._pieces, default=-1) + 1

    def encode(self, text: str) -> list[int]:
        check_text(text)
        if not self._divider.divides and len(text) > _MOST_WHOLE:
            raise InvalidRequestError(
                "text", text, f"at most {_MOST_WHOLE} characters, since the tokenizer can't take a text in parts"
            )
        return [token for part in self._divider.parts(text) for token in self._encode_part(part)]

    def _encode_part(self, text: str) -> list[int]:
        try:
            with _panics_raised():
                # like `encode`, but without offsets, and other threads run meanwhile
                return self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except Exception as error:  # the library raises plain exceptions
            raise InvalidRequestError("text", text, f"text that the tokenizer can encode ({error})") from error

    def decode_bytes(self, token: int) -> bytes:
        return self._pieces.get(token, b"")


@contextmanager
def _panics_raised() -> Iterator[None]:
    """Within the `with` block, turn a panic of the tokenizers library, which is no Exception, into RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(str(error)) from error


def _load(path: Path) -> LibraryTokenizer:
    try:
        with _panics_raised():
            library = LibraryTokenizer.from_str(read_text(path))
    except OSError as error:
        raise TokenizerError(f"{path} can't be read: {error.strerror}") from error
    except Exception as error:  # the library raises plain exceptions
        raise TokenizerError(f"{path} is not a Hugging Face tokenizer.json: {error}") from error
    library.no_truncation()
    library.no_padding()
    return library


def _check_steps(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise TokenizerError if a tokenizer.json has more steps than allowed; each may make a text longer."""
    for name, parts in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        kinds = [step["type"] for step in flatten(settings[name], parts)]
        if len(kinds) > _MOST_STEPS or kinds.count("ByteLevel") > 1:
            found = f"{len(kinds)} steps, {kinds.count('ByteLevel')} of them ByteLevel"
            raise TokenizerError(f"{path}: {name} has {found}; expected at most {_MOST_STEPS}, and one ByteLevel")


def _read_pieces(path: Path, library: LibraryTokenizer, decoder: Any) -> dict[int, bytes]:  # noqa: ANN401
    """Map every token id of a tokenizer.json to its bytes, which are b"" for a special token.

    `decoder` is the `decoder` object of the tokenizer.json at `path`. Raises TokenizerError as `piece_decoder` does.
    """
    try:
        to_bytes = piece_decoder(decoder)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from error
    pieces = {token: to_bytes(piece) for piece, token in library.get_vocab(with_added_tokens=False).items()}
    for token, added in library.get_added_tokens_decoder().items():
        pieces[token] = b"" if added.special else added.content.encode("utf-8")
    return pieces
