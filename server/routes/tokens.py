"""Text to tokens and back."""

from __future__ import annotations

from aiohttp import web

from server.body import read_body
from server.keys import ENGINE
from server.prompts import check_ids
from server.routing import Route
from server.schemas.tokens import DetokenizeRequest, Text, TokenizeRequest, Tokens
from server.wire import json_response


async def tokenize(request: web.Request) -> web.Response:
    body = await read_body(request, TokenizeRequest)
    tokens = request.app[ENGINE].tokenize(body.content)
    answer: Tokens = {"tokens": tokens, "count": len(tokens)}
    return json_response(answer)


async def detokenize(request: web.Request) -> web.Response:
    body = await read_body(request, DetokenizeRequest)
    engine = request.app[ENGINE]
    check_ids(engine, "tokens", body.tokens)
    data = engine.detokenize(body.tokens)
    answer: Text = {"content": data.decode(errors="replace"), "bytes": list(data)}
    return json_response(answer)


ROUTES = (
    Route("POST", "/tokenize", tokenize, "The tokens of a text.", Tokens, request=TokenizeRequest),
    Route("POST", "/detokenize", detokenize, "The text of tokens.", Text, request=DetokenizeRequest),
)
