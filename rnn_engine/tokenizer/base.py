"""The protocol of tokenizers, and the check that all of them apply to their text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from rnn_engine.errors import InvalidRequestError

END_OF_TEXT: Final = "<|rwkv_tokenizer_end_of_text|>"  # the name of token 0 in Hugging Face's tokenizers


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
        """The tokens that have a name but no text. A chat template spells them by their names."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of `text`, without any tokens added before or after it.

        Raises InvalidRequestError if the text can't be encoded.
        """
        ...

    def decode_bytes(self, token: int, /) -> bytes:
        """Return the bytes of a token, perhaps only a part of a character; b"" for an id without text."""
        ...


def check_text(text: str) -> None:
    """Raise InvalidRequestError for a text that has no UTF-8 form: JSON allows halves of surrogate pairs."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "text", text[error.start : error.end], "Unicode text without unpaired surrogates"
        ) from error
