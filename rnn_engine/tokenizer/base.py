"""The protocol of tokenizers, and the check that all of them make of their text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from rnn_engine.errors import InvalidRequestError

END_OF_TEXT: Final = "<|rwkv_tokenizer_end_of_text|>"  # what Hugging Face's tokenizers call token 0


class Tokenizer(Protocol):
    """Turns text into token ids and single ids back into bytes. Safe to use from several threads."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """The size of the vocabulary: `encode` returns ids from 0 to size - 1."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The tokens that are no text but have a name, by which a chat template spells them."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of `text`, with no marks put before or after it.

        Raises InvalidRequestError where the text can't be encoded.
        """
        ...

    def decode_bytes(self, token: int, /) -> bytes:
        """Return the bytes that a token stands for, perhaps a part of a character; b"" for an id without text."""
        ...


def check_text(text: str) -> None:
    """Raise InvalidRequestError for a text that has no UTF-8 form: JSON admits halves of surrogate pairs."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "text", text[error.start : error.end], "Unicode text without unpaired surrogates"
        ) from error
