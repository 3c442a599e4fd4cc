"""Ollama's routes that change which models there are, refused with the reason."""

from __future__ import annotations

from aiohttp import web

from server.formatting.ollama import ollama_error
from server.http.routing import Route
from server.schemas.ollama.answer import OllamaError

_REASON = (
    "rnn-engine takes no models through Ollama's API; its operator names them, by file or by their name on the Hub, "
    "where the server is started, or with POST /admin/models/load"
)


async def refuse(request: web.Request) -> web.StreamResponse:  # noqa: ARG001
    raise web.HTTPNotImplemented(text=_REASON)


ROUTES = tuple(
    Route(
        method,
        f"/api/{name}",
        refuse,
        f"Refused with 501 and the reason: no model is {done} through Ollama's API.",
        OllamaError,
        uses_model=False,
        error_form=ollama_error,
    )
    for method, name, done in (
        ("POST", "pull", "fetched"),
        ("POST", "push", "sent elsewhere"),
        ("POST", "create", "made"),
        ("POST", "copy", "copied"),
        ("DELETE", "delete", "deleted"),
        ("POST", "blobs/{digest}", "uploaded"),
    )
)
