"""An HTTP client for the API of a server, whose failures are one kind of error, and checked values of its answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from socket import getaddrinfo
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar
from urllib.request import getproxies, proxy_bypass

import httpx
from httpx_sse import EventSource, SSEError

from rnn_engine.errors import ServerError, without_credentials
from rnn_engine.files import output_file

Json: TypeAlias = Mapping[str, Any]
T = TypeVar("T")

_SECONDS: Final = 10.0  # to connect, and for an answer that needs no model
_WAITING: Final = httpx.Timeout(_SECONDS, read=None)  # the model runs as long as it takes; Ctrl-C ends it
_LAST: Final = "[DONE]"
_URLS: Final = "HOST:PORT, http://HOST:PORT or https://HOST"


class HttpClient:
    """A client of a server's API. Its methods raise ServerError, and KeyboardInterrupt, which ends the request."""

    def __init__(self, url: str, api_key: str | None, query: Mapping[str, str]) -> None:
        """Prepare requests with the URL parameters `query`. Raises ServerError if the URL or the key can't be used."""
        with_scheme = url if "://" in url else f"http://{url}"
        url = with_scheme.rstrip("/").removesuffix("/v1")
        self.url = without_credentials(url)  # for messages
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ServerError("the API key has characters that can't be sent; expected printable ASCII")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        try:
            proxy = _proxy_for(httpx.URL(url))
            self._place = self.url if proxy is None else f"{self.url} (through the proxy {without_credentials(proxy)})"
            self._client = httpx.Client(
                base_url=url,
                headers=headers,
                params=dict(query),
                timeout=_SECONDS,
                transport=_transport(proxy),  # so that httpx does not look for proxies itself
            )
        except httpx.InvalidURL as error:
            reason = "" if "@" in url else f": {error}"  # which may have a part of the password
            raise ServerError(f"{self.url!r} is no address of a server; expected {_URLS}{reason}") from None

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

    def send_form(self, path: str, fields: Mapping[str, str], file: BinaryIO) -> Json:
        """Send a form with `fields` and a file, whose field is called `file`. The file is read as it is sent."""
        return self._call("POST", path, data=dict(fields), files={"file": file}, timeout=_WAITING)

    def download(self, path: str, to: Path) -> None:
        """Write the response to a GET request to the file `to`, either completely or not at all."""
        with self._failures(), self._client.stream("GET", path, timeout=_WAITING) as response:
            self._check(response)
            with output_file(to) as file:
                for part in response.iter_bytes():
                    file.write(part)

    def events(self, path: str, body: Json) -> Iterator[Json]:
        """POST a body and yield the server-sent events, parsed. Raises ServerError for one of a failure, too."""
        with self._failures(), self._client.stream("POST", path, json=body, timeout=_WAITING) as response:
            self._check(response)
            for sent in EventSource(response).iter_sse():
                if sent.data == _LAST:
                    return
                event = _object(sent.json())
                if event.get("error") is not None:
                    raise ServerError(error_text(event["error"]))
                yield event
            raise ServerError("the server closed the connection before the end of the answer")

    def _call(self, method: str, path: str, **how: Any) -> Json:  # noqa: ANN401
        with self._failures():
            response = self._client.request(method, path, **how)
            self._check(response)
            return _object(response.json())

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Return a context manager that converts the exceptions of the library httpx to ServerError."""
        try:
            yield
        except httpx.ConnectError as error:
            raise ServerError(f"{self._place} can't be reached: {_reason(error)}") from error
        except httpx.TimeoutException as error:
            raise ServerError(f"{self._place} did not answer within {_SECONDS:.0f} seconds") from error
        except httpx.UnsupportedProtocol as error:
            raise ServerError(f"{self.url!r} is no address of a server; expected {_URLS}") from error
        except SSEError as error:
            raise ServerError(f"{self._place} answered with something that is no stream of events: {error}") from error
        except httpx.HTTPError as error:
            raise ServerError(f"the connection to {self._place} broke: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ServerError(f"{self._place} answered with invalid JSON: {error}") from error

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        response.read()
        raise ServerError(f"{_message(response, self._place)}{_advice(response)}")


def _proxy_for(url: httpx.URL) -> str | None:
    """Return the URL of the proxy that the environment or the system has for `url`; None for this computer itself."""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(url.host) or _is_this_computer(url.host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_this_computer(host: str) -> bool:
    """Return True if `host` is a name or an address of the loopback interface."""
    if host.rstrip(".").endswith(".localhost"):
        return True
    try:
        addresses = [ip_address(found[4][0]) for found in getaddrinfo(host, None)]
    except (OSError, ValueError):  # it can't be resolved, which is the proxy's work
        return False
    plain = [each.ipv4_mapped or each if isinstance(each, IPv6Address) else each for each in addresses]
    return all(each.is_loopback or each.is_unspecified for each in plain)


def _transport(proxy: str | None) -> httpx.HTTPTransport:
    try:
        return httpx.HTTPTransport(proxy=proxy)
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # SOCKS without its package, another scheme
        shown = without_credentials(str(proxy))
        reason = error if isinstance(error, ImportError) else "expected http://HOST:PORT or https://HOST:PORT"
        raise ServerError(f"the proxy {shown}, which the environment names, can't be used: {reason}") from None


def _reason(error: httpx.ConnectError) -> str:
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error))


def _message(response: httpx.Response, place: str) -> str:
    """Return the message of a server's error response, or the response's status if it has no message."""
    try:
        return error_text(response.json()["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{place} answered {response.status_code} {response.reason_phrase}"


def error_text(error: object) -> str:
    """Return the text of an error as a server sent it: an object with `message`, or anything else."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else f"the server reports an error: {error!r:.200}"


# The values of a server's answers. A server need not be rnn-engine, so its answers may have any form.

_KINDS: Final[Mapping[type, str]] = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def value_of(answer: Json, field: str, kind: type[T], default: T | None = None) -> T:
    """Return the value of a field, or `default`. Raises ServerError if it is of another kind, or missing."""
    value = answer.get(field)
    return default if value is None and default is not None else _of_kind(value, field, kind)


def optional_value(answer: Json, field: str, kind: type[T]) -> T | None:
    """Return the value of an answer's `field`, None if it is missing. Raises ServerError if it is of another kind."""
    value = answer.get(field)
    return None if value is None else _of_kind(value, field, kind)


def objects_of(answer: Json, field: str, default: list[Any] | None = None) -> list[Json]:
    """Return a list of objects, the value of an answer's `field`; see `value_of`."""
    return [
        _of_kind(each, f"{field}.{number}", dict) for number, each in enumerate(value_of(answer, field, list, default))
    ]


def _object(answer: object) -> Json:
    return _of_kind(answer, "answer", dict)


def _of_kind(value: object, field: str, kind: type[T]) -> T:
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise ServerError(
        f"the server's answer can't be used: {field}: {value!r:.80} is not allowed; expected {_KINDS[kind]}, as from "
        "rnn-engine or another server with OpenAI's API"
    )


def _advice(response: httpx.Response) -> str:
    """Return advice for the user on a server's error response, to be appended to its message; "" if there is none."""
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return ". Give the key as --api-key or in RNN_ENGINE_API_KEY"
    wait = response.headers.get("Retry-After")
    return "" if wait is None else f". Try again in {wait} s"
