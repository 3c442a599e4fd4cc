"""Server-sent events: the frame of a stream. Knows nothing of what an event holds."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from server.http.bodies import to_json


class EventStream:
    """One response as a stream of JSON events; nothing is sent before `open`.

    `send` waits while the client reads slowly.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )

    async def open(self) -> None:
        """Send the headers: from here on an error can only be an event."""
        await self._response.prepare(self._request)

    async def send(self, body: Mapping[str, object]) -> None:
        """Send one event."""
        await self._write(to_json(body))

    async def done(self) -> None:
        """Send the mark by which clients know that nothing is missing."""
        await self._write("[DONE]")

    async def close(self) -> web.StreamResponse:
        """End the response."""
        await self._response.write_eof()
        return self._response

    async def _write(self, data: str) -> None:
        await self._response.write(f"data: {data}\n\n".encode())
