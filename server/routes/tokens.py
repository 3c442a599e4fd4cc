"""Text to tokens and back."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.checks import check_token_ids
from rnn_engine.interface import EngineLike
from server.http.bodies import json_response, long_json_response, read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.limits import Limits
from server.schemas.tokens import DetokenizeRequest, Text, TokenizeRequest, TokenizerInfo, TokenPiece, Tokens

_PIECE_TOKENS = 4096
_END_OF_TEXT = 0


async def tokenize(request: web.Request) -> web.Response:
    body = await read_body(request, TokenizeRequest)
    engine, limits = engine_of(request), request.app[SETTINGS].limits

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

    return await long_json_response(request, len(body.content), make)


def _piece(token: int, data: bytes) -> TokenPiece:
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}


async def detokenize(request: web.Request) -> web.Response:
    body = await read_body(request, DetokenizeRequest)
    engine, limits = engine_of(request), request.app[SETTINGS].limits

    def make() -> Text:
        data = _text_bytes(engine, limits, body.tokens)
        text = data.decode(errors="replace")
        return {"content": text, "prompt": text, "bytes": list(data)}

    return await long_json_response(request, len(body.tokens), make)


async def tokenizer_info(request: web.Request) -> web.Response:
    info = engine_of(request).info
    end = next((text for text, token in info.special_tokens.items() if token == _END_OF_TEXT), None)
    template = info.chat_template
    answer: TokenizerInfo = {
        "tokenizer_class": info.tokenizer,
        "vocab_size": info.shape.vocab_size,
        "chat_template": template.as_jinja if isinstance(template, WorldTemplate) else str(template.source),
        "bos_token": None,
        "eos_token": end,
        "pad_token": end,
    }
    return json_response(answer)


def _text_bytes(engine: EngineLike, limits: Limits, tokens: Sequence[int]) -> bytes:
    """Return the bytes of `tokens`. Raises InvalidRequestError as soon as they are more than a text may have."""
    check_token_ids("token", tokens, engine.info.shape.vocab_size)
    text = bytearray()
    for start in range(0, len(tokens), _PIECE_TOKENS):
        text += engine.detokenize(tokens[start : start + _PIECE_TOKENS])
        limits.check("max_text_bytes", "tokens", len(text))
    return bytes(text)


ROUTES = (
    Route(
        "POST", "/tokenize", tokenize, "The tokens of a text.", Tokens, request=TokenizeRequest, also=("/v1/tokenize",)
    ),
    Route(
        "POST",
        "/detokenize",
        detokenize,
        "The text of tokens.",
        Text,
        request=DetokenizeRequest,
        also=("/v1/detokenize",),
    ),
    Route(
        "GET", "/tokenizer_info", tokenizer_info, "What lm-eval asks of a tokenizer, as vLLM tells it.", TokenizerInfo
    ),
)
