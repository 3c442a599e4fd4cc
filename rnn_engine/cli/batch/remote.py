"""Batches on a server with OpenAI's routes for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from rnn_engine.cli.batch import ServerOptions
from rnn_engine.cli.batch.running import Reached, describe_error
from rnn_engine.cli.http_client import HttpClient, objects_of, optional_value, value_of

_FILES: Final = "/v1/files"
_BATCHES: Final = "/v1/batches"
_LOOK_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 30 * 24 * 3600  # for which the server keeps the results


@contextmanager
def remote_batches(options: ServerOptions) -> Iterator[RemoteBatches]:
    """Yield the batches of a server. Raises ServerError if its URL or the key can't be used."""
    assert options.url is not None
    with closing(HttpClient(options.url, options.api_key, {})) as client:
        yield RemoteBatches(client, options.completion_window)


class RemoteBatches:
    """Implements `Batches` with a server. Its methods raise ServerError."""

    def __init__(self, client: HttpClient, window: str) -> None:
        self._client = client
        self._window = window
        self.left_alone = f"the batch goes on at {client.url}; wait for it with"

    def create(self, file: Path, endpoint: str) -> str:
        with file.open("rb") as content:
            stored = self._client.send_form(_FILES, {"purpose": "batch"}, content)
        body = {
            "input_file_id": value_of(stored, "id", str),
            "endpoint": endpoint,
            "completion_window": self._window,
            "output_expires_after": {"anchor": "created_at", "seconds": _KEPT_SECONDS},
        }
        return value_of(self._client.post(_BATCHES, body), "id", str)

    def get(self, batch_id: str) -> Reached:
        batch = self._client.get(f"{_BATCHES}/{quote(batch_id, safe='')}")
        counts = value_of(batch, "request_counts", dict, {})
        errors = objects_of(value_of(batch, "errors", dict, {}), "data", [])
        return Reached(
            value_of(batch, "status", str),
            value_of(counts, "total", int, 0),
            value_of(counts, "completed", int, 0),
            value_of(counts, "failed", int, 0),
            [describe_error(value_of(each, "message", str), optional_value(each, "line", int)) for each in errors],
            optional_value(batch, "output_file_id", str),
            optional_value(batch, "error_file_id", str),
        )

    def wait(self) -> None:
        time.sleep(_LOOK_SECONDS)

    def download(self, file_id: str, to: Path) -> None:
        self._client.download(f"{_FILES}/{quote(file_id, safe='')}/content", to)
