"""Format answers as OpenAI does: choices and log-probabilities in one object, or in the chunks of a stream."""

from __future__ import annotations

import codecs
import hashlib
import time
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, TypeAlias, TypeVar

from rnn_engine.chat_template.answer import AnswerPart, Piece
from rnn_engine.interface import EngineInfo, EngineLike
from rnn_engine.requests import Event, Finished, PromptProgress, PromptScored, Started, TextDelta, TokenInfo
from rnn_engine_server.apis.common.answering import Dialect, Outcome, Prepared
from rnn_engine_server.apis.common.generation import LEAST_LOGPROB, GenerationBody
from rnn_engine_server.apis.openai.schemas import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TokenLogprob
from rnn_engine_server.core import handlers
from rnn_engine_server.core.handlers import DONE, TextFrame


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


# Generations answered as OpenAI does: choices in an object, or in the chunks of a stream.


B = TypeVar("B", bound=GenerationBody, covariant=True)
Choice: TypeAlias = Mapping[str, object]


class ChoicesDialect(Dialect[B]):
    """Makes OpenAI's objects with choices, one for each engine request; the objects of an answer have the same id.

    Subclasses make the choices. For each choice their methods are called in the order of its events.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, prepared: Prepared[B]) -> None:
        super().__init__(prepared)
        info = self.engine.info
        self._common = {
            "id": f"{self.id_prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": info.model,
            "system_fingerprint": _fingerprint(info),
        }
        self._no_usage: Mapping[str, object] = {"usage": None} if self.body.include_usage else {}
        self._frames: dict[int, TextFrame] = {}

    @abstractmethod
    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> Choice | None:
        """Return a stream's first chunk for choice `index`, before its text, or None if there is nothing to send.

        `prompt` has the scored tokens of the prompt; it is empty if the prompt was not scored.
        """

    @abstractmethod
    def delta(self, index: int, delta: TextDelta) -> Choice | str | None:
        """Return a stream's chunk with more text of choice `index`, or None if there is nothing to send yet.

        A string stands for the chunk that `text_chunk` makes of it.
        """

    @abstractmethod
    def text_chunk(self, index: int, text: str) -> Choice:
        """Return a stream's chunk that has more text of choice `index` and nothing else."""

    @abstractmethod
    def closing(self, index: int, finished: Finished) -> Choice:
        """Return a stream's last chunk for choice `index`, with the reason why its text ended."""

    @abstractmethod
    def choice(self, index: int, outcome: Outcome) -> Choice:
        """Return choice `index` of an answer that is not streamed."""

    def more(self, first: Outcome) -> Mapping[str, object]:  # noqa: ARG002
        """Return the fields beside the choices of an answer that is not streamed, from the first choice's outcome."""
        return {}

    def whole(self, kept: Sequence[int], extra: Mapping[str, object]) -> Mapping[str, object]:
        choices = [{**self.choice(place, self.outcomes[place]), "index": index} for index, place in enumerate(kept)]
        answer = {"object": self.whole_object, **self._common, "choices": choices, "usage": self.usage}
        return {**answer, **self._last_times, **extra, **self.more(self.outcomes[0])}

    def events(self, index: int, event: Event, extra: Mapping[str, object]) -> Iterator[handlers.Event]:
        usage = {"usage": self.usage} if self.body.tells_usage else {}
        told = {**self.outcomes[index].times(event, with_each=self.body.tells_times), **usage, **extra}
        if isinstance(event, PromptProgress):
            yield self.chunk([], told)
        elif isinstance(choice := self._next(index, event), str) and not told:
            if index not in self._frames:
                self._frames[index] = TextFrame(partial(self.text_event, index))
            yield self._frames[index], choice
        elif choice is not None:
            choice = self.text_chunk(index, choice) if isinstance(choice, str) else choice
            yield self.chunk([choice], {**self._no_usage, **told})

    def ending(self) -> Iterator[handlers.Event]:
        if self.body.include_usage:
            yield self.chunk([], {"usage": self.usage, **self._last_times})
        yield DONE

    def text_event(self, index: int, text: str) -> Mapping[str, object]:
        """Return an event that has only text of choice `index`."""
        return self.chunk([self.text_chunk(index, text)], self._no_usage)

    @property
    def _last_times(self) -> Mapping[str, object]:
        return self.outcomes[0].times() if len(self.outcomes) == 1 else {}

    def chunk(self, choices: Sequence[Choice], extra: Mapping[str, object]) -> Mapping[str, object]:
        """Return an event of a stream, with the given choices and the fields `extra`."""
        return {"object": self.chunk_object, **self._common, "choices": choices, **extra}

    def _next(self, index: int, event: Started | PromptScored | TextDelta | Finished) -> Choice | str | None:
        match event:
            case TextDelta():
                return self.delta(index, event)
            case Started():
                return None if self.prepared.requests[index].score_from is not None else self.opening(index, ())
            case PromptScored():
                return self.opening(index, event.tokens)
            case Finished():
                return self.closing(index, event)


def _fingerprint(info: EngineInfo) -> str:
    """Return the `system_fingerprint`: a text that changes if equal requests with equal seeds may get other answers."""
    parts = (info.model, info.shape, info.weights, info.device, info.loras)
    return f"b{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"
