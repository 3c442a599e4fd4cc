"""Routes that turn text into tokens and tokens into text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, NotRequired

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.errors import check_token_ids
from rnn_engine.interface import EngineLike
from rnn_engine_server.apis.common.generation import PromptText
from rnn_engine_server.apis.common.states import ModelNameBody
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Long, RouteTable
from rnn_engine_server.core.schema import Bounded
from rnn_engine_server.core.settings import Limits

_TOKENS = Bounded(lambda limits, field, tokens: limits.check("max_prompt_tokens", field, len(tokens)))


class TokenizeRequest(ModelNameBody):
    ignored: ClassVar = frozenset({"add_special", "add_special_tokens", "parse_special"})
    aliases: ClassVar = {"prompt": "content"}

    content: PromptText = Field(description="The text.")
    with_pieces: bool = Field(default=False, description="Return each token with its text, as llama-server does.")
    return_token_strs: bool = Field(default=False, description="Add the texts of the tokens, as vLLM does.")


class TokenPiece(TypedDict):
    """One token of a text. `piece` is its text, or a list of its bytes if they are no UTF-8."""

    id: int
    piece: str | list[int]


class Tokens(TypedDict):
    """The answer with the tokens of a text. `token_strs` have U+FFFD for bytes of a token that are no UTF-8."""

    tokens: list[int] | list[TokenPiece]
    count: int
    token_strs: NotRequired[list[str]]


class DetokenizeRequest(ModelNameBody):
    tokens: Annotated[list[int], FailFast(), _TOKENS] = Field(description="Token ids.")


class Text(TypedDict):
    """The answer with the text of tokens.

    `content`, and `prompt` as vLLM calls it, have U+FFFD for bytes that are no UTF-8. `bytes` are the bytes themselves.
    """

    content: str
    prompt: str
    bytes: list[int]


class TokenizerInfo(TypedDict):
    """The properties of the tokenizer in the form of vLLM, for the evaluation tool lm-eval.

    `chat_template` is a Jinja template. `eos_token` is null if no text stands for the token that ends a text.
    """

    tokenizer_class: str
    vocab_size: int
    chat_template: str
    bos_token: None
    eos_token: str | None
    pad_token: str | None


_PIECE_TOKENS = 4096


ROUTES = RouteTable()


@ROUTES.post("/tokenize", "/v1/tokenize")
async def tokenize(call: Call, body: TokenizeRequest) -> Long[Tokens]:
    """The tokens of a text."""
    engine, limits = call.engine, call.limits

    def make() -> Tokens:
        tokens = engine.tokenize(body.content)
        limits.check("max_prompt_tokens", "content", len(tokens))
        answer: Tokens = {"tokens": tokens, "count": len(tokens)}
        data = {token: engine.detokenize([token]) for token in set(tokens)}
        if body.with_pieces:
            pieces = {token: _piece(token, each) for token, each in data.items()}
            answer["tokens"] = [pieces[token] for token in tokens]
        if body.return_token_strs:
            texts = {token: each.decode(errors="replace") for token, each in data.items()}
            answer["token_strs"] = [texts[token] for token in tokens]
        return answer

    return Long(len(body.content), make)


def _piece(token: int, data: bytes) -> TokenPiece:
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}


@ROUTES.post("/detokenize", "/v1/detokenize")
async def detokenize(call: Call, body: DetokenizeRequest) -> Long[Text]:
    """The text of tokens."""
    engine, limits = call.engine, call.limits

    def make() -> Text:
        data = _text_bytes(engine, limits, body.tokens)
        text = data.decode(errors="replace")
        return {"content": text, "prompt": text, "bytes": list(data)}

    return Long(len(body.tokens), make)


@ROUTES.get("/tokenizer_info")
async def tokenizer_info(call: Call) -> TokenizerInfo:
    """What lm-eval needs to know of a tokenizer, in vLLM's form."""
    info = call.engine.info
    return {
        "tokenizer_class": info.tokenizer,
        "vocab_size": info.shape.vocab_size,
        "chat_template": info.chat_template.as_jinja,
        "bos_token": None,
        "eos_token": info.end_text,
        "pad_token": info.end_text,
    }


def _text_bytes(engine: EngineLike, limits: Limits, tokens: Sequence[int]) -> bytes:
    """Return the bytes that `tokens` stand for.

    Raises InvalidRequestError for an unknown token, or once a text gets too long.
    """
    check_token_ids("token", tokens, engine.info.shape.vocab_size)
    text = bytearray()
    for start in range(0, len(tokens), _PIECE_TOKENS):
        text += engine.detokenize(tokens[start : start + _PIECE_TOKENS])
        limits.check("max_text_bytes", "tokens", len(text))
    return bytes(text)
