"""Text to tokens and back."""

from __future__ import annotations

from aiohttp import web

from server.http.bodies import json_response, read_body
from server.http.context import engine_of
from server.http.routing import Route
from server.schemas.tokens import DetokenizeRequest, Text, TokenizeRequest, Tokens


async def tokenize(request: web.Request) -> web.Response:
    body = await read_body(request, TokenizeRequest)
    tokens = engine_of(request).tokenize(body.content)
    answer: Tokens = {"tokens": tokens, "count": len(tokens)}
    return json_response(answer)


async def detokenize(request: web.Request) -> web.Response:
    body = await read_body(request, DetokenizeRequest)
    data = engine_of(request).detokenize(body.tokens)
    answer: Text = {"content": data.decode(errors="replace"), "bytes": list(data)}
    return json_response(answer)


ROUTES = (
    Route("POST", "/tokenize", tokenize, "The tokens of a text.", Tokens, request=TokenizeRequest),
    Route("POST", "/detokenize", detokenize, "The text of tokens.", Text, request=DetokenizeRequest),
)
