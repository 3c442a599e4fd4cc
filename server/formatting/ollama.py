"""Generations, errors and models as Ollama's API tells them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from rnn_engine.chat_template.answer import AnswerForm, AnswerReader, Part, Piece
from rnn_engine.interface import EngineInfo
from rnn_engine.requests import Event, Finished, PromptScored, Started, TextDelta
from server.formatting.choices import Outcome
from server.http.bodies import to_json
from server.http.errors import Failure, describe
from server.schemas.ollama.answer import OllamaAnsweredCall, OllamaError
from server.schemas.usage import Usage

LINES = "application/x-ndjson"
"""The type of a stream of lines of JSON."""

AnswerKind: TypeAlias = Literal["message", "response"]


class OllamaDialect:
    """The `Dialect` of chats, which have a `message`, and of generations, which have a `response`.

    `form` says what to look for in the one answer; None is text alone.
    """

    def __init__(self, info: EngineInfo, form: AnswerForm | None, kind: AnswerKind) -> None:
        self._info = info
        self._form = form or AnswerForm(divides_thoughts=False, strips=False)
        self._kind = kind
        self._reader = AnswerReader(self._form)
        self._call: list[str] = []  # the name of the call that has begun, and the pieces of its arguments
        self._started: Started | None = None

    def whole(
        self,
        kept: Sequence[int],  # noqa: ARG002
        outcomes: Sequence[Outcome],
        usage: Usage,  # noqa: ARG002
        extra: Mapping[str, object],
    ) -> Mapping[str, object]:
        [outcome] = outcomes
        reader = AnswerReader(self._form)
        said = self._said([*reader.feed(outcome.text), *reader.finish()], last=True)
        return {**self._line(said), **_end(outcome.started, outcome.end, outcome.ended), **extra}

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:  # noqa: ARG002
        match event:
            case Started():
                self._started = event
            case TextDelta():
                said = self._said(self._reader.feed(event.text), last=False)
                return encode_line(self._line(said)) if said else b""
            case Finished():
                said = self._said(self._reader.finish(), last=True)
                before = encode_line(self._line(said)) if said else b""
                return before + encode_line({**self._line({}), **_end(self._started, event, time.monotonic()), **extra})
            case PromptScored():
                pass
        return b""

    def ending(self, usage: Usage) -> bytes:  # noqa: ARG002
        return b""

    def failure(self, error: Exception) -> bytes:
        return encode_line({"error": describe(error).message})

    def empty(self) -> Mapping[str, object]:
        """Return the answer to a request that only loads the model."""
        return {**self._line({}), "done": True, "done_reason": "load"}

    def _said(self, pieces: Sequence[Piece], *, last: bool) -> dict[str, Any]:
        """Return what pieces tell, by the fields of a message; a call is told as soon as it is whole."""
        said: dict[str, Any] = {}
        for piece in pieces:
            match piece.part:
                case Part.CONTENT:
                    said["content"] = said.get("content", "") + piece.text
                case Part.REASONING:
                    said["thinking"] = said.get("thinking", "") + piece.text
                case Part.ARGUMENTS:
                    self._call.append(piece.text)
            if piece.part is not Part.ARGUMENTS:
                self._tell_call(said)
            if piece.part is Part.CALL:
                self._call = [piece.text]
        if last:
            self._tell_call(said)
        return said

    def _tell_call(self, said: dict[str, Any]) -> None:
        if self._call:
            said.setdefault("tool_calls", []).append(_whole_call(self._call[0], "".join(self._call[1:])))
            self._call = []

    def _line(self, said: Mapping[str, Any]) -> dict[str, object]:
        line: dict[str, object] = {"model": self._info.model, "created_at": _now(), "done": False}
        if self._kind == "message":
            return {**line, "message": {"role": "assistant", "content": "", **said}}
        thoughts = {"thinking": said["thinking"]} if "thinking" in said else {}
        return {**line, "response": said.get("content", ""), **thoughts}


def _whole_call(name: str, arguments: str) -> OllamaAnsweredCall:
    try:
        value = json.loads(arguments)
    except ValueError:  # the answer was cut
        value = {}
    return {"id": f"call_{uuid.uuid4().hex[:8]}", "function": {"name": name, "arguments": value}}


def _end(started: Started | None, finished: Finished, ended: float) -> Mapping[str, object]:
    """Return what the last line tells of a request that ended at `ended`, by `time.monotonic`."""
    timing = None if started is None else started.timing
    durations = {}
    if timing is not None:
        durations = {
            "total_duration": _nanoseconds(ended - timing.arrived),
            "load_duration": 0,
            "prompt_eval_duration": _nanoseconds(timing.first_token - timing.started),
            "eval_duration": _nanoseconds(ended - timing.first_token),
        }
    return {
        "done": True,
        "done_reason": finished.reason,
        "prompt_eval_count": 0 if started is None else started.prompt_tokens,
        "eval_count": finished.completion_tokens,
        **durations,
    }


def _nanoseconds(seconds: float) -> int:
    return max(round(seconds * 1e9), 0)


def _now() -> str:
    return timestamp(time.time())


def timestamp(seconds: float) -> str:
    """Return a time since 1970 as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def encode_line(body: Mapping[str, object]) -> bytes:
    """Return one line of a stream."""
    return f"{to_json(body)}\n".encode()


def ollama_error(failure: Failure) -> tuple[int, OllamaError]:
    """Tell of a failure as Ollama does."""
    return failure.status, {"error": failure.message}
