"""Ollama's route that fetches a model: here from the Hugging Face Hub into the folder of models, for admins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rnn_engine.errors import ForbiddenError
from rnn_engine.hub import Wanted
from rnn_engine_server.apis.ollama.routes import ollama_error
from rnn_engine_server.apis.ollama.schemas import PullRequest, PullStatus
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import LINES, Answer, Encoded, Event, RouteTable, Stream
from rnn_engine_server.core.routing import SETTINGS
from rnn_engine_server.models.orders import LoadOrder, folder_of
from rnn_engine_server.models.registry import MODELS

if TYPE_CHECKING:
    from rnn_engine.hub.download import Download, Hub

_LOOK_SECONDS = 0.5  # between two reports on a file
_FIRST: PullStatus = {"status": "pulling manifest"}
"""What is sent while there is no report yet."""


ROUTES = RouteTable(uses_model=False, error_form=ollama_error)


@ROUTES.post("/api/pull", answer=PullStatus, chunk=PullStatus, stream_type=LINES.content_type)
async def pull(call: Call, body: PullRequest) -> Answer:
    """Fetch a model from the Hugging Face Hub into the folder of models (`--model-folder`), load it, and serve it.

    It is served under the name in the request. An API key needs the scope `admin` for it. If the model is served
    already, the answer is `success` for any key.
    """
    lines, last = _pull(call, body.model), _FIRST
    if not body.stream:
        async with aclosing(lines):
            return Encoded.of([line async for line in lines][-1])

    async def pieces() -> AsyncGenerator[list[Event], None]:
        nonlocal last
        async with aclosing(lines):
            async for last in lines:
                yield [last]

    return Stream(pieces(), LINES, lambda: last)


async def _pull(call: Call, name: str) -> AsyncGenerator[PullStatus, None]:
    """Fetch the model called `name`, serve it under this name, and yield reports on it; nothing if it is served.

    Raises ForbiddenError unless the client is an admin, NotFoundError if there is no folder of models, and ModelError
    if the model can't be fetched.
    """
    models = call.app[MODELS]
    if all(model.name != name for model in models):
        if call.principal.scope is not Scope.ADMIN:
            raise ForbiddenError(
                f"the model {name[:200]!r} is not served, and only an API key with the scope 'admin' may fetch one; "
                "the operator can run `rnn-engine pull`"
            )
        folder, wanted = folder_of(call.app[SETTINGS]).path, Wanted.parse(name)
        hub = _hub(folder)
        download = await asyncio.to_thread(hub.plan, wanted)
        yield _FIRST
        fetching = _fetch(hub, download)
        while not fetching.done():
            for line in _progress(download):
                yield line
            await asyncio.wait((fetching,), timeout=_LOOK_SECONDS)
        path = fetching.result()
        yield {"status": "loading the model"}
        await models.put(LoadOrder(name, path))
    yield {"status": "success"}


def _hub(folder: Path) -> Hub:
    from rnn_engine.hub.download import Hub

    return Hub(shows_progress=False, folder=folder)


def _progress(download: Download) -> Iterator[PullStatus]:
    """Yield a report on each file of which some bytes are here."""
    for file in download.files:
        if done := download.num_done(file):
            kind = "sha256" if len(file.digest) == 64 else "sha1"
            yield {
                "status": f"pulling {file.digest[:12]}",
                "digest": f"{kind}:{file.digest}",
                "total": file.num_bytes,
                "completed": min(done, file.num_bytes),
            }


def _fetch(hub: Hub, download: Download) -> asyncio.Future[Path]:
    """Download files on a thread that does not keep the process from ending, and return the path to open.

    The thread goes on if the client leaves. What it has downloaded is kept for the next request.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Path] = loop.create_future()
    future.add_done_callback(lambda done: done.exception())  # seen, even if nobody waits any more

    def run() -> None:
        try:
            settle = partial(future.set_result, hub.fetch(download))
        except Exception as error:
            settle = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the server has stopped
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name="rnn-engine pull", daemon=True).start()
    return future
