"""The chat backend that uses a server over its HTTP API."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rnn_engine.cli.chat.conversation import ChatPlace, KnownState, KnownStates, Reply, free_name
from rnn_engine.cli.http_client import HttpClient, Json, error_text, objects_of, optional_value, value_of
from rnn_engine.errors import ServerError
from rnn_engine.requests import SamplingParams
from rnn_engine.sampling.params import PARAMETERS, Ai00Sampler, Seed
from rnn_engine_states.named.quota import MAX_TTL

_CHAT: Final = "/v1/chat/completions"
_STATES: Final = "/v1/states"
_NUMBERS: Final = (float, int, Seed)


@contextmanager
def remote_backend(url: str, api_key: str | None, model: str | None) -> Iterator[RemoteBackend]:
    """Yield the `Backend` of a server; `model` None is its default. Raises ServerError if it has no such model."""
    with closing(HttpClient(url, api_key, {} if model is None else {"model": model})) as client:
        names = [value_of(entry, "id", str) for entry in objects_of(client.get("/v1/models"), "data")]
        if model is None and len(names) == 1:
            [shown] = names
        else:
            found = None if model is None else client.get(f"/v1/models/{quote(model)}")
            shown = "the default model" if found is None else value_of(found, "id", str)
        backend = RemoteBackend(client, model, shown)
        try:
            yield backend
        finally:
            backend.release()


class RemoteBackend:
    """The chat `Backend` of a server. The states that it loads there belong to a lease, which `release` ends."""

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
            for choice in objects_of(event, "choices", []):
                text = value_of(value_of(choice, "delta", dict, {}), "content", str, "")
                if text:
                    reply.add(text)
            if usage := value_of(event, "usage", dict, {}):
                details = value_of(usage, "prompt_tokens_details", dict, {})
                reply.begin(value_of(usage, "prompt_tokens", int), value_of(details, "cached_tokens", int, 0))
                reply.end(value_of(usage, "completion_tokens", int))

    def check_sampling(self, sampling: SamplingParams) -> SamplingParams:
        for parameter in PARAMETERS:
            if parameter.type in _NUMBERS:
                parameter.check(getattr(sampling, parameter.name), vocab_size=0)
        return sampling

    def states(self) -> KnownStates:
        listing = self._client.get(_STATES)
        return KnownStates(tuple(map(_known, objects_of(listing, "data"))), optional_value(listing, "default", str))

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
        """Run a conversation, store its state as the field `save_as` says, and return the state's number of tokens."""
        only_run = {"max_tokens": 0, "add_generation_prompt": False, "continue_final_message": False}
        answer = self._client.post(_CHAT, {**self._body(place), **only_run, "save_as": save_as})
        if answer.get("save_error") is not None:
            raise ServerError(error_text(answer["save_error"]))
        num_tokens = value_of(value_of(answer, "saved_state", dict), "num_tokens", int, 0)
        return num_tokens or value_of(value_of(answer, "usage", dict), "prompt_tokens", int)

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
    return KnownState(value_of(entry, "name", str), optional_value(entry, "num_tokens", int))
