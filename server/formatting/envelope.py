"""The object around the choices of an answer, whole or as the events of a stream."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring

from rnn_engine.interface import EngineInfo
from rnn_engine.requests import Event, Finished, GenerateRequest, PromptProgress, PromptScored, Started, TextDelta
from server.formatting.choices import Choice, ChoiceFormatter
from server.http.sse import encode_event
from server.schemas.usage import Usage

_PLACE = uuid.uuid4().hex  # stands for a text in an event that is encoded before the text is known
_NOTHING: Mapping[str, object] = {}


class ResponseEnvelope:
    """Puts choices into response objects, all of them with the same id, time and model."""

    def __init__(self, info: EngineInfo, formatter: ChoiceFormatter) -> None:
        self._formatter = formatter
        self._common = {
            "id": f"{formatter.id_prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": info.model,
            "system_fingerprint": _fingerprint(info),
        }

    def whole(self, choices: Sequence[Choice], usage: Usage, extra: Mapping[str, object]) -> Mapping[str, object]:
        """Return the body of an answer that is not streamed."""
        return {"object": self._formatter.object, **self._common, "choices": choices, "usage": usage, **extra}

    def chunk(self, choices: Sequence[Choice], extra: Mapping[str, object]) -> Mapping[str, object]:
        """Return the body of one event of a stream."""
        return {"object": self._formatter.chunk_object, **self._common, "choices": choices, **extra}


def _fingerprint(info: EngineInfo) -> str:
    """Return a text that is the same as long as equal requests with equal seeds give equal answers."""
    parts = (info.model, info.shape, info.weights, info.device, info.loras)
    return f"b{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


class ChunkEncoder:
    """Turns the events of `calls`, one a choice, into server-sent events.

    Most of them hold a few characters of text and are otherwise equal, so what surrounds the text is encoded once a
    choice.
    """

    def __init__(
        self,
        envelope: ResponseEnvelope,
        formatter: ChoiceFormatter,
        calls: Sequence[GenerateRequest],
        *,
        include_usage: bool,
    ) -> None:
        self._envelope = envelope
        self._formatter = formatter
        self._calls = calls
        self._extra = {"usage": None} if include_usage else _NOTHING
        self._around_text: dict[int, tuple[bytes, bytes]] = {}  # choice -> what stands before and after its text

    def encode(self, index: int, event: Event, extra: Mapping[str, object] = _NOTHING) -> bytes:
        """Return what to send of an event of choice `index`, with the fields `extra`; empty if there is nothing."""
        if isinstance(event, PromptProgress):
            return encode_event(self._envelope.chunk([], extra))
        if isinstance(event, TextDelta):
            choice = self._formatter.delta(index, event)
            if isinstance(choice, str):
                if not extra:
                    return self._encode_text(index, choice)
                choice = self._formatter.text_chunk(index, choice)
        else:
            choice = self._choice(index, event)
        if choice is None:
            return b""
        return encode_event(self._envelope.chunk([choice], {**self._extra, **extra}))

    def encode_usage(self, usage: Usage, extra: Mapping[str, object]) -> bytes:
        """Return the event that tells the usage, which has no choices."""
        return encode_event(self._envelope.chunk([], {"usage": usage, **extra}))

    def _encode_text(self, index: int, text: str) -> bytes:
        around = self._around_text.get(index)
        if around is None:
            around = self._around_text[index] = self._split_event(index)
        return around[0] + encode_basestring(text).encode() + around[1]

    def _split_event(self, index: int) -> tuple[bytes, bytes]:
        event = encode_event(self._envelope.chunk([self._formatter.text_chunk(index, _PLACE)], self._extra))
        before, _, after = event.partition(encode_basestring(_PLACE).encode())
        return before, after

    def _choice(self, index: int, event: Started | PromptScored | Finished) -> Choice | None:
        match event:
            case Started():
                scored = self._calls[index].score_from is not None
                return None if scored else self._formatter.opening(index, ())
            case PromptScored():
                return self._formatter.opening(index, event.tokens)
            case Finished():
                return self._formatter.closing(index, event)
