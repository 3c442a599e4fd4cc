"""A stand-in for the Hugging Face Hub: repositories in memory, over the part of its API that downloads need."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

COMMIT = "c" * 40


@dataclass(slots=True)
class StandInHub:
    """A hub with its files, its faults, and a record of the requests."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    large: tuple[str, ...] = (".pth", ".safetensors", ".st", ".gguf")  # kept apart, under their SHA-256
    cuts: list[int] = field(default_factory=list)  # the numbers of bytes after which the next answers break off
    damages: set[str] = field(default_factory=set)  # files that are sent with other bytes than their digests say
    digest: str | None = None  # the digest stated for every large file; None = the right one
    gated: set[str] = field(default_factory=set)
    downloads: list[tuple[str, str | None]] = field(default_factory=list)  # file and range of each
    url: str = ""

    def describe(self, request: web.Request) -> web.Response:
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        if name in self.gated:
            raise web.HTTPForbidden(headers={"X-Error-Code": "GatedRepo"})
        if name not in self.repositories:
            raise web.HTTPNotFound(headers={"X-Error-Code": "RepoNotFound"})
        siblings = [self._sibling(path, data) for path, data in self.repositories[name].items()]
        return web.json_response({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})

    def _sibling(self, path: str, data: bytes) -> dict[str, object]:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        found: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": blob}
        if path.endswith(self.large):
            digest = hashlib.sha256(data).hexdigest() if self.digest is None else self.digest
            found["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
        return found

    async def download(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        data = self.repositories[f"{request.match_info['owner']}/{request.match_info['name']}"][path]
        if path in self.damages:
            data = bytes(byte ^ 1 for byte in data)
        start = request.http_range.start or 0
        self.downloads.append((path, request.headers.get("Range")))
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(data) - start
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        await response.prepare(request)
        if self.cuts:
            await response.write(data[start : start + self.cuts.pop(0)])
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write(data[start:])
        return response

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/api/models/{owner}/{name}", self._describe)
        app.router.add_get("/{owner}/{name}/resolve/{revision}/{path:.+}", self.download)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _describe(self, request: web.Request) -> web.Response:
        return self.describe(request)


@contextmanager
def stand_in_hub() -> Iterator[StandInHub]:
    """Serve a hub from a thread of its own, for clients that block."""
    hub, loop, started = StandInHub(), asyncio.new_event_loop(), threading.Event()

    def serve() -> None:
        runner = loop.run_until_complete(hub.start())
        started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert started.wait(30)
    try:
        yield hub
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
