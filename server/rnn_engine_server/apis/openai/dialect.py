"""Format answers as OpenAI does: choices and log-probabilities in one object, or in the chunks of a stream."""

from __future__ import annotations

import codecs
import hashlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from json.encoder import encode_basestring
from typing import TypeAlias

from aiohttp import web

from rnn_engine.chat_template.answer import AnswerPart, Piece
from rnn_engine.interface import EngineInfo, EngineLike
from rnn_engine.requests import (
    Event,
    Finished,
    GenerateRequest,
    PromptProgress,
    PromptScored,
    Started,
    TextDelta,
    TokenInfo,
)
from rnn_engine_server.apis.common.answering import (
    AnswerClock,
    Choice,
    ChoiceFormatter,
    ChoiceOutcome,
    RunningTally,
    answer_in,
)
from rnn_engine_server.apis.common.generation import LEAST_LOGPROB, GenerationBody
from rnn_engine_server.apis.common.states import ResolvedState
from rnn_engine_server.apis.openai.schemas import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TokenLogprob
from rnn_engine_server.auth.engine import engine_of
from rnn_engine_server.core.errors import describe
from rnn_engine_server.core.schema import Usage
from rnn_engine_server.core.streams import DONE, encode_event


def token_text(token: int, data: bytes, *, as_id: bool = False) -> str:
    """Return a unique text for a token: its own text, its bytes if they are no UTF-8, or its id if it has no bytes.

    With `as_id`, it is the id for every token.
    """
    if as_id or not data:
        return f"token_id:{token}"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class TokenTexts:
    """Divides a text among its tokens: each has the characters that it completes, so that together they are the text.

    A token that ends within a character has what comes before it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes, *, is_last: bool = False) -> str:
        """Return the text of the next token, which has the bytes `data`."""
        return self._decoder.decode(data, final=is_last)

    def preview(self, data: bytes) -> str:
        """Return the text that a token with these bytes would have if it came next."""
        before = self._decoder.getstate()
        text = self._decoder.decode(data)
        self._decoder.setstate(before)
        return text


class CompletionTokens:
    """Makes the log-probability fields of completions for the tokens of one text, in one or more calls.

    Text offsets continue from call to call.
    """

    def __init__(self, engine: EngineLike, *, as_ids: bool = False) -> None:
        self._engine = engine
        self._as_ids = as_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def describe(self, tokens: Iterable[TokenInfo]) -> CompletionLogprobs:
        """Return the log-probability fields for the next tokens of the text."""
        described: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for info in tokens:
            described["tokens"].append(token_text(info.token, info.data, as_id=self._as_ids))
            described["token_logprobs"].append(None if info.logprob is None else max(info.logprob, LEAST_LOGPROB))
            described["top_logprobs"].append(self._alternatives(info))
            described["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(info.data))
        return described

    def _alternatives(self, info: TokenInfo) -> dict[str, float] | None:
        """Return the log-probabilities of the likeliest tokens and of the token `info`, by token text.

        Return None if the log-probability of the token itself is not known.
        """
        if info.logprob is None:
            return None
        tops = {
            token_text(token, self._engine.detokenize([token]), as_id=self._as_ids): max(logprob, LEAST_LOGPROB)
            for token, logprob in info.top
        }
        own = token_text(info.token, info.data, as_id=self._as_ids)
        return tops | {own: max(info.logprob, LEAST_LOGPROB)}


class ContentTokens:
    """Selects the tokens that make up an answer's content, without those of thoughts and calls."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[tuple[TokenInfo, str]] = deque()  # tokens with the text that each one completes

    def divide(self, tokens: Iterable[TokenInfo], pieces: Iterable[Piece]) -> list[TokenInfo]:
        """Return those of an answer's next `tokens` that make up the content in its next `pieces`.

        Both continue the arguments of earlier calls. A token that belongs to the content in part is cut to that part. A
        token that ends inside a character belongs to the piece that has the character.
        """
        self._waiting.extend((info, self._decoder.decode(info.data)) for info in tokens)
        found: list[TokenInfo] = []
        for piece in pieces:
            taken = list(self._take(piece.length))
            if piece.part is AnswerPart.CONTENT:
                found += taken
        return found

    def _take(self, length: int) -> Iterator[TokenInfo]:
        """Remove and yield the tokens of the next `length` characters of the answer.

        A token that extends beyond them is divided.
        """
        while self._waiting and length > 0:
            info, text = self._waiting.popleft()
            if len(text) > length:
                self._waiting.appendleft((replace(info, data=text[length:].encode()), text[length:]))
                info = replace(info, data=text[:length].encode())
            yield info
            length -= len(text)


def chat_logprobs(engine: EngineLike, tokens: Sequence[TokenInfo], *, as_ids: bool = False) -> ChatLogprobs:
    """Return the log-probabilities of `tokens` in the form that chat completions have, with `as_ids` by their ids."""
    return {"content": [_chat_entry(engine, info, as_ids) for info in tokens], "refusal": None}


def _chat_entry(engine: EngineLike, info: TokenInfo, as_ids: bool) -> ChatTokenLogprob:
    """Return a token's entry. If the token lost the white space that began the answer, so do its alternatives."""
    own = _entry(info.token, info.data, LEAST_LOGPROB if info.logprob is None else info.logprob, as_ids)
    cut = engine.detokenize([info.token]).removesuffix(info.data)
    tops = []
    for token, logprob in info.top:
        data = info.data if token == info.token else engine.detokenize([token]).removeprefix(cut)
        tops.append(_entry(token, data, logprob, as_ids))
    return {**own, "top_logprobs": tops}


def _entry(token: int, data: bytes, logprob: float, as_id: bool) -> TokenLogprob:
    return {"token": token_text(token, data, as_id=as_id), "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(data)}


_PLACE = uuid.uuid4().hex  # stands for a text in an event that is encoded before the text is known
_NOTHING: Mapping[str, object] = {}


class ResponseEnvelope:
    """Builds OpenAI's response objects around choices. All objects of one answer have the same id, time and model."""

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
        """Return the body of one event of a stream, with the given choices and the fields `extra`."""
        return {"object": self._formatter.chunk_object, **self._common, "choices": choices, **extra}


def _fingerprint(info: EngineInfo) -> str:
    """Return the `system_fingerprint`: a text that changes if equal requests with equal seeds may get other answers."""
    parts = (info.model, info.shape, info.weights, info.device, info.loras)
    return f"b{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


class ChunkEncoder:
    """Encodes the events of engine requests as server-sent events with OpenAI's chunks. Choice i answers `calls[i]`.

    Most events hold a few characters of text and are otherwise equal, so the parts around the text are encoded once for
    each choice.
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
        """Return the server-sent event, in bytes, for an engine event of choice `index`.

        The fields `extra` are added to it. The bytes are empty if there is nothing to send for the event.
        """
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
        """Return the encoded event that has the token counts of an answer and no choices."""
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


# Generations answered as OpenAI does: choices in an object, or in the chunks of a stream.


Extra: TypeAlias = Callable[[ChoiceOutcome], Mapping[str, object]]
"""Returns the fields of an answer beside its choices, from the outcome of the first one."""


class OpenAIDialect:
    """Formats the answers of OpenAI's completions and chats, whole or as streams: a `Dialect`."""

    def __init__(
        self,
        info: EngineInfo,
        formatter: ChoiceFormatter,
        calls: Sequence[GenerateRequest],
        *,
        include_usage: bool,
        times_each: bool,
        tally: RunningTally | None = None,
        extra: Extra,
    ) -> None:
        """Format the answers to the engine requests `calls`.

        With `times_each`, each stream event has the times, not only a choice's last one; with a `tally`, it has the
        token counts so far. `extra` returns further fields of an answer that is not streamed.
        """
        self._envelope = ResponseEnvelope(info, formatter)
        self._formatter = formatter
        self._encoder = ChunkEncoder(self._envelope, formatter, calls, include_usage=include_usage)
        self._include_usage = include_usage
        self._extra = extra
        self._is_single = len(calls) == 1
        self._clocks = [AnswerClock(with_each=times_each) for _ in calls]
        self._tally = tally
        self._last_times: Mapping[str, object] = {}

    def whole(
        self, kept: Sequence[int], outcomes: Sequence[ChoiceOutcome], usage: Usage, extra: Mapping[str, object]
    ) -> Mapping[str, object]:
        choices = [
            {**self._formatter.whole(place, outcomes[place], outcomes[place].end), "index": index}
            for index, place in enumerate(kept)
        ]
        if self._is_single:
            extra = {**outcomes[0].times, **extra}
        return self._envelope.whole(choices, usage, {**extra, **self._extra(outcomes[0])})

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:
        told = self._clocks[index].tell(event)
        if isinstance(event, Finished) and self._is_single:
            self._last_times = told
        if self._tally is not None:
            self._tally.add(index, event)
            extra = {"usage": self._tally.usage(), **extra}
        return self._encoder.encode(index, event, {**told, **extra})

    def ending(self, usage: Usage) -> bytes:
        return (self._encoder.encode_usage(usage, self._last_times) if self._include_usage else b"") + DONE

    def failure(self, error: Exception) -> bytes:
        return encode_event(describe(error).body)


async def answer(
    request: web.Request,
    body: GenerationBody,
    formatter: ChoiceFormatter,
    calls: Sequence[GenerateRequest],
    resolved: ResolvedState,
    extra: Extra = lambda _: {},
) -> web.StreamResponse:
    """Run the engine requests `calls`, one for each choice, and answer in OpenAI's form.

    See `answer_in`. `extra` returns further fields of an answer that is not streamed.
    """
    info = engine_of(request, body.cache_salt).info
    dialect = OpenAIDialect(
        info,
        formatter,
        calls,
        include_usage=body.include_usage,
        times_each=body.tells_times,
        tally=RunningTally(body.copies) if body.tells_usage else None,
        extra=extra,
    )
    return await answer_in(dialect, request, body, calls, resolved)
