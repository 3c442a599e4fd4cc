"""The chat backend that uses a server over its HTTP API, and the HTTP client that it uses."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
from httpx_sse import EventSource, SSEError

from rnn_engine.cli.chat.conversation import ChatPlace, KnownState, KnownStates, Reply, free_name
from rnn_engine.errors import ServerError, without_credentials
from rnn_engine.files import atomic_file
from rnn_engine.requests import SamplingParams
from rnn_engine.sampling.params import PARAMETERS, Ai00Sampler, Seed
from states.named.quota import MAX_TTL

Json: TypeAlias = Mapping[str, Any]
T = TypeVar("T")

_SECONDS: Final = 10.0  # to connect, and for an answer that needs no model
_WAITING: Final = httpx.Timeout(_SECONDS, read=None)  # the model runs as long as it takes; Ctrl-C ends it
_LAST: Final = "[DONE]"
_URLS: Final = "HOST:PORT, http://HOST:PORT or https://HOST"


class HttpClient:
    """An HTTP client for a server's API. Its methods raise ServerError if the server fails or can't be reached.

    Ctrl-C raises KeyboardInterrupt and closes the connection, which ends the request in the server.
    """

    def __init__(self, url: str, api_key: str | None, query: Mapping[str, str]) -> None:
        """Prepare requests to the server at `url`, each with the URL parameters `query`.

        A URL without a scheme is one of http. Raises ServerError if the URL or the key can't be used.
        """
        with_scheme = url if "://" in url else f"http://{url}"
        url = with_scheme.rstrip("/").removesuffix("/v1")
        self.url = without_credentials(url)  # for messages
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ServerError("the API key has characters that can't be sent; expected printable ASCII")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        try:
            self._client = httpx.Client(base_url=url, headers=headers, params=dict(query), timeout=_SECONDS)
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

    def download(self, path: str, to: Path) -> None:
        """Write the response to a GET request to the file `to`, either completely or not at all."""
        with self._failures(), self._client.stream("GET", path, timeout=_WAITING) as response:
            self._check(response)
            with atomic_file(to) as file:
                for part in response.iter_bytes():
                    file.write(part)

    def events(self, path: str, body: Json) -> Iterator[Json]:
        """Send a POST request and yield the server-sent events of its response, as parsed JSON.

        Raises ServerError also for an event that reports a failure.
        """
        with self._failures(), self._client.stream("POST", path, json=body, timeout=_WAITING) as response:
            self._check(response)
            for sent in EventSource(response).iter_sse():
                if sent.data == _LAST:
                    return
                event = _object(sent.json())
                if event.get("error") is not None:
                    raise ServerError(_error_text(event["error"]))
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
            raise ServerError(f"{self.url} can't be reached: {_reason(error)}") from error
        except httpx.TimeoutException as error:
            raise ServerError(f"{self.url} did not answer within {_SECONDS:.0f} seconds") from error
        except httpx.UnsupportedProtocol as error:
            raise ServerError(f"{self.url!r} is no address of a server; expected {_URLS}") from error
        except SSEError as error:
            raise ServerError(f"{self.url} answered with something that is no stream of events: {error}") from error
        except httpx.HTTPError as error:
            raise ServerError(f"the connection to {self.url} broke: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ServerError(f"{self.url} answered with invalid JSON: {error}") from error

    def _check(self, response: httpx.Response) -> None:
        """Raise ServerError if `response` reports an error."""
        if response.is_success:
            return
        response.read()
        raise ServerError(f"{_message(response)}{_advice(response)}")


def _reason(error: httpx.ConnectError) -> str:
    """Return why a connection failed, without the system's number for it."""
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error))


def _message(response: httpx.Response) -> str:
    """Return the message of a server's error response, or the response's status if it has no message."""
    try:
        return _error_text(response.json()["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{response.url.host} answered {response.status_code} {response.reason_phrase}"


def _error_text(error: object) -> str:
    """Return the text of an error as a server sent it: an object with `message`, or anything else."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else f"the server reports an error: {error!r:.200}"


# The values of a server's answers. A server need not be rnn-engine, so its answers may have any form.

_KINDS: Final[Mapping[type, str]] = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def _value(answer: Json, field: str, kind: type[T], default: T | None = None) -> T:
    """Return the value of an answer's `field`, or `default` if it is missing or null.

    Raises ServerError if it is of another kind, or if it is missing and there is no default.
    """
    value = answer.get(field)
    return default if value is None and default is not None else _of_kind(value, field, kind)


def _optional(answer: Json, field: str, kind: type[T]) -> T | None:
    """Return the value of an answer's `field`, None if it is missing. Raises ServerError if it is of another kind."""
    value = answer.get(field)
    return None if value is None else _of_kind(value, field, kind)


def _objects(answer: Json, field: str, default: list[Any] | None = None) -> list[Json]:
    """Return a list of objects, the value of an answer's `field`; see `_value`."""
    return [
        _of_kind(each, f"{field}.{number}", dict) for number, each in enumerate(_value(answer, field, list, default))
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


_CHAT: Final = "/v1/chat/completions"
_STATES: Final = "/v1/states"
_NUMBERS: Final = (float, int, Seed)


@contextmanager
def remote_backend(url: str, api_key: str | None, model: str | None) -> Iterator[RemoteBackend]:
    """Yield a chat `Backend` that uses the server at `url`. If `model` is None, the server's default model answers.

    Raises ServerError if the server can't be reached, or does not have the model.
    """
    client = HttpClient(url, api_key, {} if model is None else {"model": model})
    try:
        names = [_value(entry, "id", str) for entry in _objects(client.get("/v1/models"), "data")]
        if model is None and len(names) == 1:
            [shown] = names
        else:
            found = None if model is None else client.get(f"/v1/models/{quote(model)}")
            shown = "the default model" if found is None else _value(found, "id", str)
        backend = RemoteBackend(client, model, shown)
        try:
            yield backend
        finally:
            backend.release()
    finally:
        client.close()


class RemoteBackend:
    """The chat `Backend` that lets a server generate the answers, and stores states on that server.

    The states that it loads there belong to its own lease, which `release` ends.
    """

    def __init__(self, client: HttpClient, model: str | None, shown: str) -> None:
        self._client = client
        self._model = {} if model is None else {"model": model}
        self._owner = f"chat-{uuid.uuid4().hex[:12]}"
        self._has_lease = False
        self.description = f"{shown} at {client.url}"

    def release(self) -> None:
        """Remove the states that this conversation has loaded from the server, if it can be reached."""
        if self._has_lease:
            with suppress(ServerError):
                self._client.delete(f"/v1/leases/{self._owner}")

    def answer(self, place: ChatPlace, sampling: SamplingParams, max_tokens: int, reply: Reply) -> None:
        body = {**self._body(place), **_sampling_fields(sampling)}
        body |= {"max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
        for event in self._client.events(_CHAT, body):
            for choice in _objects(event, "choices", []):
                text = _value(_value(choice, "delta", dict, {}), "content", str, "")
                if text:
                    reply.add(text)
            if usage := _value(event, "usage", dict, {}):
                details = _value(usage, "prompt_tokens_details", dict, {})
                reply.begin(_value(usage, "prompt_tokens", int), _value(details, "cached_tokens", int, 0))
                reply.end(_value(usage, "completion_tokens", int))

    def check_sampling(self, sampling: SamplingParams) -> SamplingParams:
        for parameter in PARAMETERS:
            if parameter.type in _NUMBERS:
                parameter.check(getattr(sampling, parameter.name), vocab_size=0)
        return sampling

    def states(self) -> KnownStates:
        listing = self._client.get(_STATES)
        return KnownStates(tuple(map(_known, _objects(listing, "data"))), _optional(listing, "default", str))

    def load(self, path: Path, name: str | None = None) -> KnownState:
        with path.open("rb") as file:
            name = name or free_name(path, [state.name for state in self.states().states])
            self._has_lease = True
            return _known(self._client.upload(_state_path(name), file, {"owner": self._owner, "ttl": str(MAX_TTL)}))

    def save(self, place: ChatPlace, path: Path) -> int:
        name = f"{self._owner}-saved"
        num_tokens = self._name(place, {"name": name, "owner": name})
        try:
            self._client.download(f"{_state_path(name)}/export", path)
        finally:
            with suppress(ServerError):  # if this fails, it goes with its lease
                self._client.delete(_state_path(name))
        return num_tokens

    def name_state(self, place: ChatPlace, name: str) -> int:
        return self._name(place, {"name": name})

    def _name(self, place: ChatPlace, save_as: Json) -> int:
        """Run the messages of a conversation and store the state on the server; return the number of tokens in it.

        `save_as` is the request's field that names the state.
        """
        only_run = {"max_tokens": 0, "add_generation_prompt": False, "continue_final_message": False}
        answer = self._client.post(_CHAT, {**self._body(place), **only_run, "save_as": save_as})
        if answer.get("save_error") is not None:
            raise ServerError(_error_text(answer["save_error"]))
        num_tokens = _value(_value(answer, "saved_state", dict), "num_tokens", int, 0)
        return num_tokens or _value(_value(answer, "usage", dict), "prompt_tokens", int)

    def _body(self, place: ChatPlace) -> dict[str, Any]:
        messages = [{"role": message.role.value.lower(), "content": message.content} for message in place.messages]
        body = {**self._model, "messages": messages, "reasoning_format": "none"}
        return body if place.start is None else body | {"state": place.start}


def _sampling_fields(sampling: SamplingParams) -> Json:
    """Return the fields of an HTTP request for the sampling parameters that differ from their defaults."""
    values = {parameter.name: getattr(sampling, parameter.name) for parameter in PARAMETERS}
    changed = {each.name: values[each.name] for each in PARAMETERS if values[each.name] != each.default}
    if "logit_bias" in changed:
        bias = changed["logit_bias"]
        changed["logit_bias"] = [[token, False if value == -float("inf") else value] for token, value in bias.items()]
    if "sampler" in changed:
        sampler: Ai00Sampler = changed["sampler"]
        changed["sampler"] = {"type": sampler.TYPE, **asdict(sampler)}
    return changed


def _state_path(name: str) -> str:
    return f"{_STATES}/{quote(name, safe='')}"


def _known(entry: Json) -> KnownState:
    return KnownState(_value(entry, "name", str), _optional(entry, "num_tokens", int))
