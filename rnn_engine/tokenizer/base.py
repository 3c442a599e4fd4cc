"""The protocol that all tokenizers implement, and the check that they apply to text before they encode it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from rnn_engine.errors import InvalidRequestError

END_OF_TEXT: Final = "<|rwkv_tokenizer_end_of_text|>"  # the name of token 0 in Hugging Face's tokenizers


class Tokenizer(Protocol):
    """The protocol of a tokenizer, which encodes text as token ids and decodes single ids to bytes. Thread-safe."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """The size of the vocabulary: `encode` returns ids from 0 to size - 1."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Maps the names of special tokens to their ids. A chat template contains these tokens by name."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """Return the ids of `text`, without any tokens added before or after it.

        Raises InvalidRequestError if the text can't be encoded.
        """
        ...

    def decode_bytes(self, token: int, /) -> bytes:
        """Return the bytes of a token: UTF-8, but possibly only a part of a character. b"" for an id without text."""
        ...


def check_text(text: str) -> None:
    """Raise InvalidRequestError if a text can't be encoded in UTF-8 because it has an unpaired surrogate.

    Such texts can come from clients, since JSON allows unpaired surrogates.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "text", text[error.start : error.end], "Unicode text without unpaired surrogates"
        ) from error
