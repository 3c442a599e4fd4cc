"""The bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from typing_extensions import TypedDict

from server.schemas.base import RequestBody


class TokenizeRequest(RequestBody):
    ignored: ClassVar = frozenset({"add_special", "add_special_tokens", "model", "parse_special"})
    aliases: ClassVar = {"prompt": "content"}

    content: str = Field(description="The text.")


class Tokens(TypedDict):
    tokens: list[int]
    count: int


class DetokenizeRequest(RequestBody):
    ignored: ClassVar = frozenset({"model"})

    tokens: list[int] = Field(description="Token ids.")


class Text(TypedDict):
    """`content` has U+FFFD where the tokens' bytes are no UTF-8; `bytes` are the bytes themselves."""

    content: str
    bytes: list[int]
