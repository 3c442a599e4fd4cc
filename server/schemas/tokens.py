"""The bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from server.limits import Limits
from server.schemas.prompt import check_prompts
from server.schemas.state_ref import ModelNameBody


class TokenizeRequest(ModelNameBody):
    ignored: ClassVar = frozenset({"add_special", "add_special_tokens", "parse_special"})
    aliases: ClassVar = {"prompt": "content"}

    content: str = Field(description="The text.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_prompts(limits, "content", [self.content])


class Tokens(TypedDict):
    tokens: list[int]
    count: int


class DetokenizeRequest(ModelNameBody):
    tokens: Annotated[list[int], FailFast()] = Field(description="Token ids.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_prompt_tokens", "tokens", len(self.tokens))


class Text(TypedDict):
    """`content` has U+FFFD where the tokens' bytes are no UTF-8; `bytes` are the bytes themselves."""

    content: str
    bytes: list[int]
