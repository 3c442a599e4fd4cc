"""The tokens of an answer and their text, up to where it ends."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from rnn_engine.draws import TokenLogprobs
from rnn_engine.requests import Event, FinishReason, GenerateRequest, TextDelta, TokenInfo
from rnn_engine.sampling import SequenceMask
from rnn_engine.scheduler.text import TextStream, TokenInfos
from rnn_engine.telemetry import EngineCounters


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a text ends."""

    reason: FinishReason
    stop: bytes | int | None = None  # the stop string or token that ended it
    stop_token: TokenInfo | None = None  # where log-probabilities were asked for


CUT = Ending("length")


class Answer:
    """What was generated after one prompt. Token by token it is given to `take` until there is an `ending`."""

    def __init__(
        self,
        request: GenerateRequest,
        generated: array[int],
        mask: SequenceMask | None,
        infos: TokenInfos,
        counters: EngineCounters,
    ) -> None:
        """Tokens are appended to `generated`, `mask` is told of each, and `counters` count them."""
        self.ending: Ending | None = None
        self._generated = generated
        self._mask = mask
        self._infos = infos
        self._counters = counters
        stops = request.stop_bytes
        self._text = TextStream(stops)
        self._has_stops = len(stops) > 0
        self._stop_tokens = frozenset(request.stop_tokens)
        self._min_tokens = request.min_tokens
        self._max_tokens = request.max_tokens
        self._has_logprobs = request.logprobs is not None
        self._new_text = ""  # since the last `events`, as is the next
        self._new_tokens: list[TokenInfo] = []

    def describe(self, token: int) -> TokenInfo:
        """Return a token without its log-probability; one of its own where that is to follow."""
        info = self._infos[token]
        return TokenInfo(token, info.data, None) if self._has_logprobs else info

    def take(self, info: TokenInfo) -> bool:
        """Append a token; return False where the text ends there."""
        self._generated.append(info.token)
        if self._mask is not None:
            self._mask.accept(info.token)
        return self._show((info,))

    def take_all(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> bool:
        """Append one or more tokens, of which only the last may end the text; return False where it does.

        `logprobs` are theirs, where they were asked for. There is no mask.
        """
        self._generated.extend(tokens)
        infos = [self._infos[token] for token in tokens]
        if self._has_logprobs:
            infos = [
                TokenInfo(info.token, info.data, own.own, own.top) for info, own in zip(infos, logprobs, strict=True)
            ]
        return self._show(infos)

    def _show(self, infos: Sequence[TokenInfo]) -> bool:
        """Add the text of tokens that were appended, of which the last may end it; return False where it does."""
        last, num_generated = infos[-1], len(self._generated)
        self._counters.generated_tokens += len(infos)
        is_stop = last.token in self._stop_tokens
        if is_stop:
            infos = infos[:-1]
        self._new_tokens += infos
        data = infos[0].data if len(infos) == 1 else b"".join([info.data for info in infos])
        self._new_text += self._text.feed(data, may_stop=num_generated > self._min_tokens)
        if is_stop:
            self.end(Ending("stop", last.token, last if self._has_logprobs else None))
        elif self._has_stops and self._text.match is not None:
            self.end(Ending("stop", self._text.match))
        elif self._mask is not None and self._mask.ended:
            self.end(Ending("stop"))
        elif num_generated >= self._max_tokens:
            self.end(CUT)
        return self.ending is None

    def end(self, ending: Ending) -> None:
        """End the text after the tokens that there are."""
        self.ending = ending
        self._new_text += self._text.flush()

    def events(self) -> list[Event]:
        """Return the event of what was taken since the last call, if there is any."""
        if not self._new_tokens and not self._new_text:
            return []
        delta = TextDelta(self._new_text, tuple(self._new_tokens))
        self._new_text, self._new_tokens = "", []
        return [delta]
