"""The bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, ClassVar, NotRequired

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from server.limits import Limits
from server.schemas.prompt import check_prompts
from server.schemas.state_ref import ModelNameBody


class TokenizeRequest(ModelNameBody):
    ignored: ClassVar = frozenset({"add_special", "add_special_tokens", "parse_special"})
    aliases: ClassVar = {"prompt": "content"}

    content: str = Field(description="The text.")
    with_pieces: bool = Field(default=False, description="Tell each token with its text, as llama-server does.")
    return_token_strs: bool = Field(default=False, description="Add the texts of the tokens, as vLLM does.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_prompts(limits, "content", [self.content])


class TokenPiece(TypedDict):
    """`piece` is the token's text, or its bytes where they are no UTF-8."""

    id: int
    piece: str | list[int]


class Tokens(TypedDict):
    """`token_strs` have U+FFFD where the bytes of a token are no UTF-8."""

    tokens: list[int] | list[TokenPiece]
    count: int
    token_strs: NotRequired[list[str]]


class DetokenizeRequest(ModelNameBody):
    tokens: Annotated[list[int], FailFast()] = Field(description="Token ids.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_prompt_tokens", "tokens", len(self.tokens))


class Text(TypedDict):
    """`content`, and `prompt` under vLLM's name, have U+FFFD where the tokens' bytes are no UTF-8; `bytes` are the
    bytes themselves."""

    content: str
    prompt: str
    bytes: list[int]


class TokenizerInfo(TypedDict):
    """What vLLM tells of a tokenizer, as lm-eval asks for it. `chat_template` is a template of Jinja; `eos_token` is
    null where the token that ends a text has no text by which it can be written."""

    tokenizer_class: str
    vocab_size: int
    chat_template: str
    bos_token: None
    eos_token: str | None
    pad_token: str | None
