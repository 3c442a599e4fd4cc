"""Completions answered as llama-server's own route does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rnn_engine.interface import EngineLike
from rnn_engine.requests import Event, Finished, PromptProgress, PromptScored, Started, TextDelta, TokenInfo
from rnn_engine.sampling.params import PARAMETERS
from server.formatting.choices import Outcome
from server.formatting.logprobs import LEAST_LOGPROB
from server.formatting.timings import AnswerClock
from server.http.errors import describe
from server.http.sse import encode_event
from server.schemas.llama_server.completion import (
    DrawnProbability,
    LlamaCompletion,
    LlamaCompletionRequest,
    PromptProbability,
    TokenProbability,
)
from server.schemas.prompt import text_of
from server.schemas.usage import Usage

_END_OF_TEXT = 0


@dataclass(slots=True)
class _Progress:
    """How far the stream of one request has come."""

    clock: AnswerClock
    has_new_line: bool = False

    @property
    def started(self) -> Started:
        """The event with which the answer began."""
        assert self.clock.started is not None
        return self.clock.started


class LlamaDialect:
    """The `Dialect` of llama-server's `/completion`."""

    def __init__(self, engine: EngineLike, body: LlamaCompletionRequest) -> None:
        self._engine = engine
        self._body = body
        self._progress: dict[int, _Progress] = {}

    def whole(
        self,
        kept: Sequence[int],
        outcomes: Sequence[Outcome],
        usage: Usage,  # noqa: ARG002
        extra: Mapping[str, object],
    ) -> Mapping[str, object] | Sequence[Mapping[str, object]]:
        answers = [self._whole(index, place, outcomes[place], extra) for index, place in enumerate(kept)]
        return answers[0] if len(answers) == 1 else answers

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:
        progress = self._progress.get(index)
        if progress is None:
            progress = self._progress[index] = _Progress(AnswerClock(with_each=self._body.tells_times))
        times = progress.clock.tell(event)
        match event:
            case PromptProgress():
                return encode_event(self._chosen({**_without_text(index, event.prompt_tokens), **times}))
            case TextDelta() if event.text or event.tokens:
                return encode_event({**self._chunk(index, progress, event), **times})
            case Finished():
                last = self._last(index, index, progress.started, event, has_new_line=progress.has_new_line)
                return encode_event(self._chosen({**last, **times, **extra}))
            case PromptScored():
                return encode_event(self._chosen(self._scored_chunk(index, progress, event)))
            case Started() | TextDelta():
                pass
        return b""

    def ending(self, usage: Usage) -> bytes:  # noqa: ARG002
        return b""

    def failure(self, error: Exception) -> bytes:
        return encode_event(describe(error).body)

    def _whole(self, index: int, place: int, outcome: Outcome, extra: Mapping[str, object]) -> Mapping[str, object]:
        assert outcome.started is not None
        text = text_of(self._engine, self._body.prompt[place // self._body.copies]) if self._body.echo else ""
        answer = self._last(index, place, outcome.started, outcome.end, has_new_line="\n" in outcome.text)
        answer["content"] = text + outcome.text
        if self._body.return_tokens:
            answer["tokens"] = [info.token for info in outcome.tokens]
        if self._body.alternatives is not None:
            answer["completion_probabilities"] = [self._drawn(info) for info in outcome.drawn]
        if self._body.scores_prompt:
            answer["prompt_probabilities"] = [self._scored(info) for info in outcome.prompt]
        return self._chosen({**answer, **outcome.times, **extra})

    def _last(
        self, index: int, place: int, started: Started, finished: Finished, *, has_new_line: bool
    ) -> LlamaCompletion:
        """Return what is told at the end of a request, without its text and its times."""
        stop = finished.stop
        return {
            "index": index,
            "content": "",
            "tokens": [],
            "id_slot": -1,
            "stop": True,
            "model": self._engine.info.model,
            "tokens_predicted": finished.completion_tokens,
            "tokens_evaluated": started.prompt_tokens,
            "generation_settings": {**self._settings, "seed": finished.seed},
            "prompt": text_of(self._engine, self._body.prompt[place // self._body.copies]),
            "has_new_line": has_new_line,
            "truncated": False,
            "stop_type": "limit" if finished.reason == "length" else "word" if isinstance(stop, bytes) else "eos",
            "stopping_word": stop.decode() if isinstance(stop, bytes) else "",
            "tokens_cached": started.cached_tokens,
        }

    def _scored_chunk(self, index: int, progress: _Progress, event: PromptScored) -> Mapping[str, object]:
        return {
            **_without_text(index, progress.started.prompt_tokens),
            "prompt_probabilities": [self._scored(info) for info in event.tokens],
        }

    def _chunk(self, index: int, progress: _Progress, delta: TextDelta) -> Mapping[str, object]:
        progress.has_new_line |= "\n" in delta.text
        chunk: dict[str, object] = {
            "index": index,
            "content": delta.text,
            "tokens": [info.token for info in delta.tokens],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": progress.clock.predicted,
            "tokens_evaluated": progress.started.prompt_tokens,
        }
        if self._body.alternatives is not None:
            chunk["completion_probabilities"] = [self._drawn(info) for info in delta.tokens]
        return chunk

    @property
    def _settings(self) -> dict[str, Any]:
        """What the request means, field by field."""
        body = self._body
        values = {
            parameter.name: getattr(body, parameter.name) for parameter in PARAMETERS if parameter.name != "sampler"
        }
        biases = {_END_OF_TEXT: -math.inf} if body.ignore_eos else {}
        values["logit_bias"] = [
            {"token": token, "bias": None if bias == -math.inf else bias}
            for token, bias in {**biases, **values["logit_bias"]}.items()
        ]
        return {
            **values,
            "adaptive_target": -1.0,  # off, as all that this server accepts
            "adaptive_decay": 0.9,
            "n_predict": body.max_tokens,
            "max_tokens": body.max_tokens,
            "n_probs": body.logprobs or 0,
            "stop": list(body.stop),
            "stream": body.stream,
            "grammar": "" if body.answer_grammar is None else body.answer_grammar.text,
        }

    def _chosen(self, answer: Mapping[str, object]) -> Mapping[str, object]:
        """Return the fields of an answer that the client wants, under the names by which it wants them."""
        wanted = self._body.response_fields
        if not wanted:
            return answer
        found: dict[str, object] = {}
        for path in wanted:
            value: object = answer
            for name in path.split("/"):
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is not None:
                found[path] = value
        return found

    def _drawn(self, info: TokenInfo) -> DrawnProbability:
        tops = [self._probability(token, self._engine.detokenize([token]), logprob) for token, logprob in info.top]
        return {**self._probability(info.token, info.data, info.logprob), "top_logprobs": tops}

    def _scored(self, info: TokenInfo) -> PromptProbability:
        drawn = self._drawn(info)
        return {**drawn, "logprob": None if info.logprob is None else drawn["logprob"]}

    def _probability(self, token: int, data: bytes, logprob: float | None) -> TokenProbability:
        known = LEAST_LOGPROB if logprob is None else max(logprob, LEAST_LOGPROB)
        return {"id": token, "token": data.decode(errors="replace"), "bytes": list(data), "logprob": known}


def _without_text(index: int, prompt_tokens: int) -> Mapping[str, object]:
    """Return an event of a stream that brings no text, since the prompt has not come to its end."""
    return {
        "index": index,
        "content": "",
        "tokens": [],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": 0,
        "tokens_evaluated": prompt_tokens,
    }
