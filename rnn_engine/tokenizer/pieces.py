"""Turn the pieces of a Hugging Face vocabulary into bytes, one piece at a time.

The library decodes whole sequences and puts a replacement character where a piece ends inside a character; streaming
needs the raw bytes of each piece. So the steps of the decoder that the tokenizer's file describes are applied here to
single pieces. A step for a text as a whole, such as dropping the first space, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from rnn_engine.errors import TokenizerError

PieceDecoder: TypeAlias = Callable[[str], bytes]

_Step: TypeAlias = Mapping[str, Any]

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WHOLE_TEXT_STEPS: Final = frozenset({"Fuse", "Strip"})  # these act on the joined text alone
_PIECE_STEPS: Final = frozenset({"ByteLevel", "ByteFallback", "Replace", "Metaspace"})


def piece_decoder(decoder: _Step | None) -> PieceDecoder:
    """Return what turns a single piece into bytes, from the JSON of a tokenizer.json's decoder.

    Raises TokenizerError for a decoder whose pieces have no bytes of their own.
    """
    steps = list(_flatten(decoder))
    kinds = {step["type"] for step in steps}
    if not steps or not kinds <= _PIECE_STEPS | _WHOLE_TEXT_STEPS:
        raise _unsupported(", ".join(sorted(kinds)) or "none")
    replacements = [_replacement(step) for step in steps if step["type"] in ("Replace", "Metaspace")]
    to_bytes = _pick(kinds)
    return lambda piece: to_bytes(_replace(piece, replacements))


def byte_level_alphabet() -> dict[str, int]:
    """Return byte-level BPE's alphabet: printable Latin-1 as itself, the other bytes as characters from U+0100 on."""
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
    return piece.encode("utf-8")  # the library, too, takes such a piece for plain text


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
    """Return what a step of the decoder replaces, and by what."""
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
