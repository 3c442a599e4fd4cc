"""Calls of a server's HTTP API, with failures that say what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import httpx

from rnn_engine.atomic_file import atomic_file
from rnn_engine.errors import ServerError

Json: TypeAlias = Mapping[str, Any]

_SECONDS: Final = 10.0  # to connect, and for an answer that needs no model
_WAITING: Final = httpx.Timeout(_SECONDS, read=None)  # the model runs as long as it takes; Ctrl-C ends it
_DATA: Final = "data:"
_LAST: Final = "[DONE]"
_URLS: Final = "http://HOST:PORT or https://HOST"


class HttpClient:
    """A server's API. Each method raises ServerError where the server can't be reached or refuses.

    Ctrl-C raises KeyboardInterrupt and closes the connection, which ends the request in the server.
    """

    def __init__(self, url: str, api_key: str | None, query: Mapping[str, str]) -> None:
        """`query` is sent with each call."""
        self.url = url.rstrip("/").removesuffix("/v1")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ServerError("the API key is not allowed; expected printable ASCII characters")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        try:
            self._client = httpx.Client(base_url=self.url, headers=headers, params=dict(query), timeout=_SECONDS)
        except httpx.InvalidURL as error:
            raise ServerError(f"{self.url!r} is not allowed; expected {_URLS}: {error}") from error

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> Json:
        return self._call("GET", path)

    def post(self, path: str, body: Json) -> Json:
        return self._call("POST", path, json=body, timeout=_WAITING)

    def delete(self, path: str) -> Json:
        return self._call("DELETE", path)

    def upload(self, path: str, file: BinaryIO, query: Mapping[str, str]) -> Json:
        return self._call("PUT", path, content=file, params=dict(query), timeout=_WAITING)

    def download(self, path: str, to: Path) -> None:
        """Write what is answered to a file, which is there as a whole or not at all."""
        with self._failures(), self._client.stream("GET", path, timeout=_WAITING) as response:
            self._check(response)
            with atomic_file(to) as file:
                for part in response.iter_bytes():
                    file.write(part)

    def events(self, path: str, body: Json) -> Iterator[Json]:
        """Yield the server-sent events of an answer. Raises ServerError for one that tells of a failure, too."""
        with self._failures(), self._client.stream("POST", path, json=body, timeout=_WAITING) as response:
            self._check(response)
            for line in response.iter_lines():
                data = line.removeprefix(_DATA).strip()
                if not line.startswith(_DATA):
                    continue
                if data == _LAST:
                    return
                event = json.loads(data)
                if "error" in event:
                    raise ServerError(event["error"]["message"])
                yield event
            raise ServerError("the stream broke before the answer's end: the server closed the connection")

    def _call(self, method: str, path: str, **how: Any) -> Json:  # noqa: ANN401
        with self._failures():
            response = self._client.request(method, path, **how)
            self._check(response)
            answer: Json = response.json()
            return answer

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise ServerError in place of what httpx raises."""
        try:
            yield
        except httpx.ConnectError as error:
            raise ServerError(f"{self.url} can't be reached: {error}") from error
        except httpx.TimeoutException as error:
            raise ServerError(f"{self.url} did not answer within {_SECONDS:.0f} seconds") from error
        except httpx.UnsupportedProtocol as error:
            raise ServerError(f"{self.url!r} is not allowed; expected {_URLS}") from error
        except httpx.HTTPError as error:
            raise ServerError(f"the connection to {self.url} broke: {error}") from error
        except ValueError as error:
            raise ServerError(f"{self.url} answered with something that is no JSON: {error}") from error

    def _check(self, response: httpx.Response) -> None:
        """Raise ServerError for an answer that is none."""
        if response.is_success:
            return
        response.read()
        raise ServerError(f"{_message(response)}{_advice(response)}")


def _message(response: httpx.Response) -> str:
    """Return what the server says of a failure."""
    try:
        message: str = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{response.url.host} answered {response.status_code} {response.reason_phrase}"
    return message


def _advice(response: httpx.Response) -> str:
    """Return what the user may do about it."""
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return ". Give the key as --api-key or in RNN_ENGINE_API_KEY"
    wait = response.headers.get("Retry-After")
    return "" if wait is None else f". It may be asked again in {wait} s"
