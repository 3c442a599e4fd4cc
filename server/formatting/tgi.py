"""Answers and errors in the words of text-generation-inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rnn_engine.interface import EngineLike
from rnn_engine.requests import Event, Finished, PromptScored, Started, TextDelta, TokenInfo
from server.formatting.choices import Outcome
from server.formatting.logprobs import LEAST_LOGPROB
from server.http.errors import Failure, describe
from server.http.sse import encode_event
from server.schemas.prompt import text_of
from server.schemas.tgi import (
    ErrorType,
    FinishWord,
    PrefillToken,
    TgiAnswer,
    TgiBestDetails,
    TgiDetails,
    TgiError,
    TgiEvent,
    TgiRequest,
    TgiSequence,
    TgiToken,
)
from server.schemas.usage import Usage

_GENERATION_FAILED = 424
_UNPROCESSABLE = 422


def tgi_error(failure: Failure) -> tuple[int, TgiError]:
    """Tell of a failure as text-generation-inference does, with its statuses."""
    match failure.status:
        case 400:
            return _UNPROCESSABLE, _error(failure, "validation")
        case 429:
            return 429, _error(failure, "overloaded")
        case 503:
            return 503, _error(failure, "healthcheck")
        case 500 | 504:
            return _GENERATION_FAILED, _error(failure, "generation")
    return failure.status, _error(failure, "validation")


def _error(failure: Failure, kind: ErrorType) -> TgiError:
    return {"error": failure.message, "error_type": kind}


@dataclass(slots=True)
class _Stream:
    """What has come of the one sequence of a stream."""

    started: Started | None = None
    text: str = ""
    sent: int = 0
    waiting: list[TokenInfo] = field(default_factory=list)  # at most the last token: it is sent with how it ended


class TgiDialect:
    """The `Dialect` of text-generation-inference."""

    def __init__(self, engine: EngineLike, body: TgiRequest) -> None:
        self._engine = engine
        self._body = body
        self._stream = _Stream()

    def whole(
        self,
        kept: Sequence[int],
        outcomes: Sequence[Outcome],
        usage: Usage,  # noqa: ARG002
        extra: Mapping[str, object],
    ) -> Mapping[str, object]:
        best = outcomes[kept[0]]
        answer: TgiAnswer = {"generated_text": self._text(best)}
        if self._body.details or self._body.decoder_input_details:
            rest = sorted(
                (place for place in range(len(outcomes)) if place != kept[0]),
                key=lambda place: -outcomes[place].mean_logprob,
            )
            others: list[TgiSequence] = [
                {"generated_text": self._text(outcomes[place]), **self._details(outcomes[place])} for place in rest
            ]
            details = self._details(best)
            answer["details"] = TgiBestDetails({**details, "best_of_sequences": others}) if others else details
        return {**answer, **extra}

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:  # noqa: ARG002
        stream = self._stream
        match event:
            case Started():
                stream.started = event
            case TextDelta():
                stream.text += event.text
                tokens = [*stream.waiting, *event.tokens]
                stream.waiting = tokens[-1:]
                return b"".join(encode_event(self._event(info)) for info in tokens[:-1])
            case Finished():
                return self._last(event, extra)
            case PromptScored():
                pass
        return b""

    def ending(self, usage: Usage) -> bytes:  # noqa: ARG002
        return b""

    def failure(self, error: Exception) -> bytes:
        return encode_event(tgi_error(describe(error))[1])

    def _last(self, finished: Finished, extra: Mapping[str, object]) -> bytes:
        stream = self._stream
        tokens = [*stream.waiting, *([] if finished.stop_token is None else [finished.stop_token])]
        tokens = tokens or [TokenInfo(0, b"", None)]  # a grammar may end a text without one
        before = b"".join(encode_event(self._event(info)) for info in tokens[:-1])
        last = self._event(tokens[-1], special=finished.stop_token is not None)
        last["generated_text"] = self._echo + stream.text + _stop_text(finished)
        last["details"] = {
            "finish_reason": _finish_word(finished),
            "generated_tokens": finished.completion_tokens,
            "seed": finished.seed,
            "input_length": 0 if stream.started is None else stream.started.prompt_tokens,
        }
        return before + encode_event({**last, **extra})

    def _event(self, info: TokenInfo, *, special: bool = False) -> TgiEvent:
        self._stream.sent += 1
        event: TgiEvent = {
            "index": self._stream.sent,
            "token": _token(info, special=special),
            "generated_text": None,
            "details": None,
        }
        if self._body.logprobs:
            event["top_tokens"] = self._top(info)
        return event

    def _text(self, outcome: Outcome) -> str:
        return self._echo + outcome.text + _stop_text(outcome.end)

    def _details(self, outcome: Outcome) -> TgiDetails:
        finished = outcome.end
        details: TgiDetails = {
            "finish_reason": _finish_word(finished),
            "generated_tokens": finished.completion_tokens,
            "seed": finished.seed,
            "prefill": [_prefill(info) for info in outcome.prompt],
            "tokens": [_token(info, special=info is finished.stop_token) for info in outcome.drawn],
        }
        if self._body.logprobs:
            details["top_tokens"] = [self._top(info) for info in outcome.drawn]
        return details

    @property
    def _echo(self) -> str:
        return text_of(self._engine, self._body.prompt[0]) if self._body.echo else ""

    def _top(self, info: TokenInfo) -> list[TgiToken]:
        return [
            _token(TokenInfo(token, self._engine.detokenize([token]), logprob), special=token == 0)
            for token, logprob in info.top
        ]


def _prefill(info: TokenInfo) -> PrefillToken:
    return {"id": info.token, "text": info.data.decode(errors="replace"), "logprob": _logprob(info)}


def _token(info: TokenInfo, *, special: bool) -> TgiToken:
    return {
        "id": info.token,
        "text": info.data.decode(errors="replace"),
        "logprob": _logprob(info),
        "special": special,
    }


def _logprob(info: TokenInfo) -> float | None:
    return None if info.logprob is None else max(info.logprob, LEAST_LOGPROB)


def _stop_text(finished: Finished) -> str:
    return finished.stop.decode() if isinstance(finished.stop, bytes) else ""


def _finish_word(finished: Finished) -> FinishWord:
    if finished.reason == "length":
        return "length"
    return "stop_sequence" if isinstance(finished.stop, bytes) else "eos_token"
