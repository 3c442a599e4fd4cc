"""The tokenizer of a model that has none: clients send and receive token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rnn_engine.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class NoTokenizer:
    """Refuses every text, and says why there is no tokenizer."""

    size: int
    reason: str

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return {}

    @property
    def name(self) -> str:
        return "none"

    def encode(self, text: str) -> list[int]:
        raise InvalidRequestError("text", text, f"token ids, as the model has no tokenizer: {self.reason}")

    def decode_bytes(self, _token: int) -> bytes:
        return b""
