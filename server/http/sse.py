"""Server-sent events: the encoding of events, and the response that streams them."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from server.http.bodies import to_json
from server.http.routing import EVENTS

DONE = b"data: [DONE]\n\n"
"""The event that ends a stream, by which clients know that nothing is missing."""


def encode_event(body: Mapping[str, object], name: str | None = None) -> bytes:
    """Return one event, perhaps with a name, that holds `body` as JSON."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {to_json(body)}\n\n".encode()


EVENT_STREAM = f"{EVENTS}; charset=utf-8"
"""The Content-Type of a stream of server-sent events."""


class EventStream:
    """One response that is sent piece by piece: server-sent events, unless its type says otherwise.

    Nothing is sent before `open`.
    """

    def __init__(self, request: web.Request, content_type: str = EVENT_STREAM) -> None:
        self._request = request
        self._response = web.StreamResponse(
            headers={
                "Content-Type": content_type,
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )

    async def open(self) -> None:
        """Send the headers. From now on an error can only be sent as an event."""
        await self._response.prepare(self._request)

    async def write(self, events: bytes) -> None:
        """Send encoded events; wait while the client reads slowly. Raises ConnectionError if it has left."""
        if events:
            await self._response.write(events)

    async def close(self) -> web.StreamResponse:
        """End the response and return it."""
        await self._response.write_eof()
        return self._response
