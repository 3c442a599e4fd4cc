"""llama-server's own routes for completions and embeddings, and infill, which a recurrent model can't do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.requests import Event, Finished, PromptProgress, PromptScored, TextDelta, TokenInfo
from rnn_engine.sampling.params import PARAMETERS
from rnn_engine_server.apis.common.answering import Body, Dialect, Prepared, stop_text
from rnn_engine_server.apis.common.generation import LEAST_LOGPROB, note_slot, text_of
from rnn_engine_server.apis.common.states import StateEntry
from rnn_engine_server.apis.openai.completions import prepare_completions
from rnn_engine_server.apis.openai.dialect import TokenTexts
from rnn_engine_server.apis.openai.embeddings import EmbeddingsRequest, find_vectors
from rnn_engine_server.apis.openai.schemas import CompletionRequest
from rnn_engine_server.core import handlers
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import RefusalError
from rnn_engine_server.core.handlers import Answer, Long, RouteTable
from rnn_engine_server.core.schema import ErrorBody, Only, PromptProgressBody, Timings


class LlamaCompletionRequest(CompletionRequest):
    """A request to continue a text or tokens, with llama-server's field names.

    Fields that OpenAI has as well mean the same.
    """

    ignored: ClassVar = frozenset(
        {
            "backend_sampling",
            "cache_prompt",
            "grammar_lazy",
            "grammar_triggers",
            "n_cache_reuse",
            "n_discard",
            "n_keep",
            "preserved_tokens",
            "t_max_prompt_ms",
        }
    )
    neutral: ClassVar = {
        "image_data": Only(([],), because="the model reads text only"),
        "post_sampling_probs": Only((False,), because="probabilities are those that the model gives, before sampling"),
        "prompt_logprobs": (0,),
    }
    aliases: ClassVar = {"max_completion_tokens": "max_tokens", "n_probs": "logprobs", "n_cmpl": "n"}

    return_tokens: bool = Field(default=False, description="Return the ids of the tokens; a stream always has them.")
    response_fields: list[str] | None = Field(
        default=None,
        description="Return only these fields of the answer, and of a stream's last event. `generation_settings/seed` "
        "is a field within another, and is returned under that whole name. Null or empty: all.",
    )

    @property
    def alternatives(self) -> int | None:
        return super().alternatives or None  # n_probs of 0 asks for none


class TokenProbability(TypedDict):
    """A token with its log-probability.

    `token` has the characters that it completes in the text, and `bytes` are its own.
    """

    id: int
    token: str
    bytes: list[int]
    logprob: float


class DrawnProbability(TokenProbability):
    top_logprobs: list[TokenProbability]


class PromptProbability(TypedDict):
    """A token of the prompt with its log-probability. `logprob` is null if nothing precedes the token."""

    id: int
    token: str
    bytes: list[int]
    logprob: float | None
    top_logprobs: list[TokenProbability]


class LlamaCompletion(TypedDict):
    """The answer to a completion: the text for one prompt. For several prompts or answers there is a list of these.

    `tokens_evaluated` counts the prompt's tokens; `tokens_cached` of them were known and not run. `stop_type` is `word`
    for a stop string, `limit` for `n_predict`, and `eos` for a stop token or the end of a grammar. `timings` is absent
    if no times are taken. `prompt_probabilities` has the prompt's tokens, if `echo` and `n_probs` ask for them.
    """

    index: int
    content: str
    tokens: list[int]
    id_slot: Literal[-1]
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: Mapping[str, Any]
    prompt: str
    has_new_line: bool
    truncated: Literal[False]
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    timings: NotRequired[Timings]
    completion_probabilities: NotRequired[list[DrawnProbability]]
    prompt_probabilities: NotRequired[list[PromptProbability]]
    saved_state: NotRequired[StateEntry | None]


class LlamaCompletionChunk(TypedDict):
    """An event of a completion's stream before the last one, which is a LlamaCompletion without text.

    `prompt_probabilities` come in an event of their own, before the text.
    """

    prompt_progress: NotRequired[PromptProgressBody]
    timings: NotRequired[Timings]
    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: Literal[-1]
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: NotRequired[list[DrawnProbability]]
    prompt_probabilities: NotRequired[list[PromptProbability]]


class LlamaDialect(Dialect[LlamaCompletionRequest]):
    """Formats the answers of llama-server's `/completion`, whole or as streams."""

    def __init__(self, prepared: Prepared[LlamaCompletionRequest]) -> None:
        super().__init__(prepared)
        self._texts = [TokenTexts() for _ in prepared.requests]
        self._has_new_line = [False for _ in prepared.requests]  # in what was streamed

    def whole(self, kept: Sequence[int], extra: Mapping[str, object]) -> Body:
        answers = [self._whole(index, place, extra) for index, place in enumerate(kept)]
        return answers[0] if len(answers) == 1 else answers

    def events(self, index: int, event: Event, extra: Mapping[str, object]) -> Iterator[handlers.Event]:
        outcome = self.outcomes[index]
        times = outcome.times(event, with_each=self.body.tells_times)
        match event:
            case PromptProgress():
                yield {**_chunk(index, event.prompt_tokens), **times}
            case TextDelta() if event.text or event.tokens:
                self._has_new_line[index] |= "\n" in event.text
                chunk = _chunk(index, outcome.prompt_tokens, event, outcome.num_tokens)
                if self.body.alternatives is not None:
                    chunk["completion_probabilities"] = self._drawn(event.tokens, self._texts[index])
                yield {**chunk, **times}
            case Finished():
                last = self._last(index, index, has_new_line=self._has_new_line[index])
                yield self._chosen({**last, **times, **extra})
            case PromptScored():
                probabilities = {"prompt_probabilities": self._scored(event.tokens)}
                yield {**_chunk(index, outcome.prompt_tokens), **probabilities}

    def _whole(self, index: int, place: int, extra: Mapping[str, object]) -> Mapping[str, object]:
        outcome = self.outcomes[place]
        text = text_of(self.engine, self.body.prompt[place // self.body.copies]) if self.body.echo else ""
        answer = self._last(index, place, has_new_line="\n" in outcome.text)
        answer["content"] = text + outcome.text
        if self.body.return_tokens:
            answer["tokens"] = [info.token for info in outcome.tokens]
        if self.body.alternatives is not None:
            answer["completion_probabilities"] = self._drawn(outcome.drawn, TokenTexts())
        if self.body.scores_prompt:
            answer["prompt_probabilities"] = self._scored(outcome.prompt)
        return self._chosen({**answer, **outcome.times(), **extra})

    def _last(self, index: int, place: int, *, has_new_line: bool) -> LlamaCompletion:
        """Return the fields of the last event for an answer, without the text and the times.

        `index` is the index to report, `place` the number of the answer's engine request.
        """
        outcome = self.outcomes[place]
        finished, stop = outcome.end, outcome.end.stop
        return {
            "index": index,
            "content": "",
            "tokens": [],
            "id_slot": -1,
            "stop": True,
            "model": self.engine.info.model,
            "tokens_predicted": outcome.num_tokens,
            "tokens_evaluated": outcome.prompt_tokens,
            "generation_settings": {**self._settings, "seed": finished.seed},
            "prompt": text_of(self.engine, self.body.prompt[place // self.body.copies]),
            "has_new_line": has_new_line,
            "truncated": False,
            "stop_type": "limit" if finished.reason == "length" else "word" if isinstance(stop, bytes) else "eos",
            "stopping_word": stop_text(finished),
            "tokens_cached": outcome.cached_tokens,
        }

    @property
    def _settings(self) -> dict[str, Any]:
        """The generation settings that the server uses for this request, by field name."""
        body = self.body
        values = {
            parameter.name: getattr(body, parameter.name) for parameter in PARAMETERS if parameter.name != "sampler"
        }
        biases = {self.engine.info.end_of_text: -math.inf} if body.ignore_eos else {}
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
        """Return `answer` with only the fields that the request's `response_fields` lists, or with all if it is empty.

        A field within another is listed by its path.
        """
        wanted = self.body.response_fields
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

    def _drawn(self, tokens: Iterable[TokenInfo], texts: TokenTexts) -> list[DrawnProbability]:
        """Return the probabilities of the next tokens of a text, each with those of its alternatives."""
        found: list[DrawnProbability] = []
        for info in tokens:
            others = ((token, self.engine.detokenize([token]), logprob) for token, logprob in info.top)
            tops = [_probability(token, texts.preview(data), data, logprob) for token, data, logprob in others]
            own = _probability(info.token, texts.take(info.data), info.data, info.logprob)
            found.append({**own, "top_logprobs": tops})
        return found

    def _scored(self, tokens: Sequence[TokenInfo]) -> list[PromptProbability]:
        drawn = self._drawn(tokens, TokenTexts())
        return [
            {**each, "logprob": None if info.logprob is None else each["logprob"]}
            for each, info in zip(drawn, tokens, strict=True)
        ]


def _probability(token: int, text: str, data: bytes, logprob: float | None) -> TokenProbability:
    known = LEAST_LOGPROB if logprob is None else max(logprob, LEAST_LOGPROB)
    return {"id": token, "token": text, "bytes": list(data), "logprob": known}


def _chunk(index: int, prompt_tokens: int, delta: TextDelta | None = None, num_tokens: int = 0) -> dict[str, object]:
    """Return the fields of a stream event before the last; without `delta` it is sent while the prompt is processed."""
    return {
        "index": index,
        "content": "" if delta is None else delta.text,
        "tokens": [] if delta is None else [info.token for info in delta.tokens],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": num_tokens,
        "tokens_evaluated": prompt_tokens,
    }


ROUTES = RouteTable()


@ROUTES.post("/completion", "/completions", answer=LlamaCompletion | list[LlamaCompletion], chunk=LlamaCompletionChunk)
async def completion(call: Call, body: LlamaCompletionRequest) -> Answer:
    """Continue texts or tokens, as llama-server's own route does."""
    prepared = await prepare_completions(call, body)
    await note_slot(call, body, prepared.requests)
    return await LlamaDialect(prepared).answer()


@ROUTES.post("/infill", "/v1/fim/completions", answer=ErrorBody)
async def infill(call: Call) -> Answer:  # noqa: ARG001
    """Refused with 501 and the reason, as is Mistral's route: RWKV models do not fill in."""
    raise RefusalError(
        501,
        "a recurrent model reads a text from its beginning and has not learned to fill in what comes before a "
        "given end; continue the prefix with /completion",
    )


# Embeddings.


class LlamaEmbeddingRequest(EmbeddingsRequest):
    """A request for vectors of texts, with llama-server's field names. The other fields are those of /v1/embeddings."""

    aliases: ClassVar = {"content": "input"}

    encoding_format: Literal["float"] = Field(default="float", description="Only numbers.")
    embd_normalize: Literal[-1, 2] | None = Field(
        default=None, description="2: as `normalize`; -1: without it. Null: 2, or -1 with `per_token`."
    )
    per_token: bool = Field(
        default=False,
        description="Return a vector for the state after each token, not only after the last, as llama-server does "
        "with `--pooling none`. The tokens up to each of them count as an input of their own.",
    )

    @property
    def normalizes(self) -> bool:
        if self.embd_normalize is None:
            return self.normalize and not self.per_token
        return self.embd_normalize == 2


class LlamaEmbedding(TypedDict):
    """The vectors of one input: a single one, or one for each token if the request sets `per_token`. The answer is a
    list of these.
    """

    index: int
    embedding: list[list[float]]


@ROUTES.post("/embedding", "/embeddings")
async def embedding(call: Call, body: LlamaEmbeddingRequest) -> Long[list[LlamaEmbedding]]:
    """The vectors of texts or tokens, as llama-server's own route gives them."""
    found = await find_vectors(call, body.model_copy(update={"normalize": body.normalizes}), each=body.per_token)

    def make() -> list[LlamaEmbedding]:
        return [{"index": index, "embedding": vectors} for index, vectors in enumerate(found.by_input())]

    return Long(found.num_numbers, make)
