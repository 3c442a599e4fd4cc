"""What every tokenizer can do, and the one check that all of them make of the text they are given."""

from __future__ import annotations

from typing import Protocol

from rnn_engine.errors import InvalidRequestError


class Tokenizer(Protocol):
    """Turns text into token ids and single ids back into bytes. Safe to use from several threads."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """Every id that `encode` gives lies in 0..size-1."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """The ids of `text`, with no marks put before or after it.

        Raises InvalidRequestError where the text can't be encoded.
        """
        ...

    def decode_bytes(self, token: int, /) -> bytes:
        """The bytes that a token stands for, which may be a part of a character; b"" for an id that has no text."""
        ...


def check_text(text: str) -> None:
    """Raises InvalidRequestError for a text that has no UTF-8 form: JSON admits halves of surrogate pairs."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "text", text[error.start : error.end], "Unicode text without unpaired surrogates"
        ) from error
