"""Generations answered as OpenAI's responses."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from rnn_engine.chat_template.answer import AnswerForm, AnswerReader, Part, Piece
from rnn_engine.interface import EngineLike
from rnn_engine.operations.tool_calls import ToolChoice
from rnn_engine.requests import Event, Finished, PromptProgress, PromptScored, Started, TextDelta, TokenInfo
from rnn_engine.sampling.params import SamplingParams
from server.formatting.choices import Outcome
from server.formatting.logprobs import ContentTokens, chat_logprobs
from server.formatting.response_items import ItemWriter
from server.formatting.timings import AnswerClock
from server.http.errors import describe
from server.http.sse import encode_event
from server.schemas.chat_answer import ChatTokenLogprob
from server.schemas.responses.answer import ResponseUsage
from server.schemas.responses.request import ResponsesRequest
from server.schemas.usage import Usage

Keep: TypeAlias = Callable[[Mapping[str, Any]], None]


class ResponsesDialect:
    """The `Dialect` of responses. `form` says what to look for in the one answer, which is drawn by `sampling`.

    `keep` takes the response once it is whole.
    """

    def __init__(
        self, engine: EngineLike, body: ResponsesRequest, form: AnswerForm, sampling: SamplingParams, keep: Keep
    ) -> None:
        self._engine = engine
        self._body = body
        self._sampling = sampling
        self._keep = keep
        self._key = uuid.uuid4().hex
        self._created = int(time.time())
        self._reader = AnswerReader(form)
        self._tokens = ContentTokens()
        self._items = ItemWriter(self._key)
        self._clock = AnswerClock(with_each=body.tells_times)
        self._started: Started | None = None
        self._thoughts = _ThoughtTokens()
        self._number = 0

    def whole(
        self,
        kept: Sequence[int],  # noqa: ARG002
        outcomes: Sequence[Outcome],
        usage: Usage,  # noqa: ARG002
        extra: Mapping[str, object],
    ) -> Mapping[str, object]:
        [outcome] = outcomes
        self._started = outcome.started
        list(self._take(self._reader.feed(outcome.text), outcome.tokens))
        list(self._end(outcome.end))
        return self._finished(outcome.end, extra)

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:  # noqa: ARG002
        opening = self._open() if self._number == 0 else b""
        times = self._clock.tell(event)
        match event:
            case PromptProgress():
                told = {"type": "response.in_progress", "response": self._response("in_progress")}
                return opening + self._encode({**told, **times})
            case Started():
                self._started = event
                return opening
            case TextDelta():
                news = self._take(self._reader.feed(event.text), event.tokens)
                return b"".join(self._encode({**one, **times}) for one in news)
            case Finished():
                last = b"".join(map(self._encode, self._end(event)))
                response = self._finished(event, extra)
                return last + self._encode({"type": f"response.{response['status']}", "response": response, **times})
            case PromptScored():
                return b""

    def ending(self, usage: Usage) -> bytes:  # noqa: ARG002
        return b""

    def failure(self, error: Exception) -> bytes:
        failure = describe(error)
        told = {"code": failure.code or failure.type, "message": failure.message}
        return self._encode({"type": "response.failed", "response": {**self._response("failed"), "error": told}})

    def _open(self) -> bytes:
        """Return the events with which a stream begins."""
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._encode({"type": kind, "response": response}) for kind in kinds)

    def _take(self, pieces: Sequence[Piece], tokens: Sequence[TokenInfo]) -> Iterator[Mapping[str, Any]]:
        self._thoughts.add(pieces, tokens)
        return self._items.tell(pieces, self._logprobs(pieces, tokens))

    def _end(self, finished: Finished) -> Iterator[Mapping[str, Any]]:
        yield from self._take(self._reader.finish(), ())
        yield from self._items.finish(is_cut=finished.reason == "length")

    def _logprobs(self, pieces: Sequence[Piece], tokens: Sequence[TokenInfo]) -> Sequence[ChatTokenLogprob]:
        if not self._body.wants_logprobs:
            return ()
        return chat_logprobs(self._engine, self._tokens.divide(tokens, pieces))["content"]

    def _finished(self, finished: Finished, extra: Mapping[str, object]) -> Mapping[str, Any]:
        """Return the whole response, which is kept if it is to be."""
        is_cut = finished.reason == "length"
        response = {
            **self._response("incomplete" if is_cut else "completed"),
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._items.items,
            "usage": self._usage(finished),
            **extra,
        }
        self._keep(response)
        return response

    def _response(self, status: str) -> Mapping[str, Any]:
        """Return a response that tells nothing of its answer."""
        body = self._body
        return {
            "id": f"resp_{self._key}",
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "background": False,
            "conversation": None if body.conversation is None else {"id": body.conversation},
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_tokens,
            "metadata": body.metadata,
            "model": self._engine.info.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": body.store,
            "temperature": self._sampling.temperature,
            "text": {"format": body.text.format},
            "tool_choice": _choice_word(body.tool_choice or ToolChoice("auto")),
            "tools": [tool.model_dump() for tool in body.tools],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": self._sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _usage(self, finished: Finished) -> ResponseUsage:
        prompt, cached = (0, 0) if self._started is None else (self._started.prompt_tokens, self._started.cached_tokens)
        drawn = finished.completion_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": drawn,
            "output_tokens_details": {"reasoning_tokens": self._thoughts.count},
            "total_tokens": prompt + drawn,
        }

    def _encode(self, event: Mapping[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        return encode_event({**event, "sequence_number": number}, event["type"])


class _ThoughtTokens:
    """Counts the tokens of the thoughts with which an answer begins, and of what stands around them."""

    def __init__(self) -> None:
        self._sizes: list[int] = []  # of all tokens in bytes
        self._read = 0  # bytes of all pieces
        self._end = 0  # of the last thought in bytes

    def add(self, pieces: Sequence[Piece], tokens: Sequence[TokenInfo]) -> None:
        self._sizes += [len(info.data) for info in tokens]
        for piece in pieces:
            self._read += len(piece.text.encode())
            if piece.part is Part.REASONING:
                self._end = self._read

    @property
    def count(self) -> int:
        ends = list(accumulate(self._sizes, initial=0))
        return sum(start < self._end for start in ends[:-1])


def _choice_word(choice: ToolChoice) -> str | Mapping[str, Any]:
    """Return which tools may be called in OpenAI's words."""
    if choice.names is None:
        return choice.mode
    tools = [{"type": "function", "name": name} for name in choice.names]
    if choice.mode == "required" and len(tools) == 1:
        return tools[0]
    return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}
