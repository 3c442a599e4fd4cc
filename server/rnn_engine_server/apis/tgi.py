"""The routes of text-generation-inference (TGI): generate text, and describe the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import ClassVar, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import Event, Finished, TextDelta, TokenInfo
from rnn_engine_server.apis.common.answering import Body, Dialect, Outcome, Prepared, stop_text
from rnn_engine_server.apis.common.generation import LEAST_LOGPROB, text_of
from rnn_engine_server.apis.openai.completions import prepare_completions
from rnn_engine_server.apis.openai.dialect import TokenTexts
from rnn_engine_server.apis.openai.schemas import CompletionRequest
from rnn_engine_server.core import handlers
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.handlers import Answer, RouteTable
from rnn_engine_server.core.routing import EVENTS
from rnn_engine_server.core.schema import Only, RefusedError

_MAKES_RANDOM = ("temperature", "top_k", "top_p", "typical_p")
_ALL_TOKENS = {"top_k": 0, "top_p": 1.0}  # for a request that draws and does not set them


class TgiRequest(CompletionRequest):
    """A request to continue a text, with text-generation-inference's field names.

    The fields stand in `parameters`, or beside `inputs`; those of completions mean the same here. Without `do_sample`,
    `temperature`, `top_k`, `top_p` and `typical_p` the likeliest tokens are taken. With any of these, all tokens may be
    drawn unless `top_k` or `top_p` says otherwise.
    """

    aliases: ClassVar = {
        "inputs": "prompt",
        "max_new_tokens": "max_tokens",
        "return_full_text": "echo",
        "top_n_tokens": "logprobs",
        "truncate": "truncate_prompt_tokens",
    }

    neutral: ClassVar = {
        "adapter_id": Only((), because="LoRAs are merged when the model is loaded"),
        "prompt_logprobs": (0,),
        "watermark": Only((False,), because="answers have no watermark"),
    }
    unfolded: ClassVar = {
        "parameters": {"type": ["object", "null"], "description": "All fields except `stream` may be in here."},
        "do_sample": {
            "type": ["boolean", "null"],
            "description": "Draw tokens at random, instead of always taking the likeliest.",
        },
    }

    max_tokens: int = Field(default=100, ge=1, description="The most tokens to generate.")
    details: bool = Field(
        default=False, description="Return the tokens, their log-probabilities and why the answer ended."
    )
    decoder_input_details: bool = Field(
        default=False, description="Return the log-probabilities of the prompt's tokens, too. Not with a stream."
    )

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        parameters = fields.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise RefusedError(parameters, "an object or null", below="parameters")
        unfolded = {name: value for name, value in fields.items() if name != "parameters"} | parameters
        draws = unfolded.pop("do_sample", None) or any(unfolded.get(name) is not None for name in _MAKES_RANDOM)
        if not draws:
            unfolded["temperature"] = 0
        for name, value in _ALL_TOKENS.items():
            if unfolded.get(name) is None:
                unfolded[name] = value
        return unfolded

    @property
    def alternatives(self) -> int | None:
        told = self.details or self.decoder_input_details or self.stream
        return (self.logprobs or 0) if told or self.copies > self.n else None

    @property
    def scores_prompt(self) -> bool:
        return self.decoder_input_details


class PrefillToken(TypedDict):
    """A token of the prompt with its log-probability. `logprob` is null for the first one."""

    id: int
    text: str
    logprob: float | None


class TgiToken(TypedDict):
    """A token of the answer with its log-probability. `special` is true for the token that ends a text.

    `text` has the characters that the token completes; it is empty within a character of several tokens.
    """

    id: int
    text: str
    logprob: float | None
    special: bool


FinishWord: TypeAlias = Literal["length", "eos_token", "stop_sequence"]


class TgiDetails(TypedDict):
    """Details of an answer: its tokens, and how it ended."""

    finish_reason: FinishWord
    generated_tokens: int
    seed: int
    prefill: list[PrefillToken]
    tokens: list[TgiToken]
    top_tokens: NotRequired[list[list[TgiToken]]]


class TgiSequence(TgiDetails):
    """One answer of a request with `best_of` that is not the best one."""

    generated_text: str


class TgiBestDetails(TgiDetails):
    """Details of the best of several answers: its tokens, how it ended, and the other answers."""

    best_of_sequences: list[TgiSequence]


class TgiAnswer(TypedDict):
    """The answer to a request for text.

    A stop string that ends the text is part of it. `details` is absent unless the request sets it.
    """

    generated_text: str
    details: NotRequired[TgiDetails | TgiBestDetails]


class TgiStreamDetails(TypedDict):
    finish_reason: FinishWord
    generated_tokens: int
    seed: int
    input_length: int


class TgiEvent(TypedDict):
    """One event of a stream, with one token. The last event has the whole text and how it ended."""

    index: int
    token: TgiToken
    top_tokens: NotRequired[list[TgiToken]]
    generated_text: str | None
    details: TgiStreamDetails | None


class TeiPooling(TypedDict):
    pooling: Literal["last_token"]


class TeiModelType(TypedDict):
    """What a model made for embedding is for, in text-embeddings-inference's form."""

    embedding: TeiPooling


class TgiInfo(TypedDict):
    """The description of the served model, and the limits on a request. A model made for embedding also has what
    clients of text-embeddings-inference read here."""

    model_id: str
    model_sha: None
    model_dtype: str
    model_device_type: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_length: int
    max_input_tokens: int
    max_total_tokens: int
    max_batch_size: int
    version: str
    router: str
    sha: None
    docker_label: None
    model_type: NotRequired[TeiModelType]
    max_batch_tokens: NotRequired[int]
    max_client_batch_size: NotRequired[int]


ErrorType: TypeAlias = Literal["validation", "overloaded", "generation", "healthcheck"]


class TgiError(TypedDict):
    error: str
    error_type: ErrorType


_ERRORS: Mapping[int, tuple[int, ErrorType]] = {
    400: (422, "validation"),
    429: (429, "overloaded"),
    500: (424, "generation"),
    503: (503, "healthcheck"),
    504: (424, "generation"),
}


def tgi_error(failure: Failure) -> tuple[int, TgiError]:
    """Return the HTTP status and the body of an error in text-generation-inference's form."""
    status, kind = _ERRORS.get(failure.status, (failure.status, "validation"))
    return status, {"error": failure.message, "error_type": kind}


class TgiDialect(Dialect[TgiRequest]):
    """Formats the answers of text-generation-inference's API, whole or as streams.

    With `listed`, an answer that is not streamed is a list of one object.
    """

    def __init__(self, prepared: Prepared[TgiRequest], *, listed: bool = False) -> None:
        super().__init__(prepared)
        self._listed = listed
        # Of a stream:
        self._sent_text = ""
        self._num_sent = 0
        self._texts = TokenTexts()
        self._waiting: list[TokenInfo] = []  # at most the last token: it is sent with how the answer ended

    def whole(self, kept: Sequence[int], extra: Mapping[str, object]) -> Body:
        best = self.outcomes[kept[0]]
        answer: TgiAnswer = {"generated_text": self._text(best)}
        if self.body.details or self.body.decoder_input_details:
            rest = sorted((each for each in self.outcomes if each is not best), key=lambda each: -each.mean_logprob)
            others: list[TgiSequence] = [{"generated_text": self._text(each), **self._details(each)} for each in rest]
            details = self._details(best)
            answer["details"] = TgiBestDetails({**details, "best_of_sequences": others}) if others else details
        told = {**answer, **extra}
        return [told] if self._listed else told

    def events(self, index: int, event: Event, extra: Mapping[str, object]) -> Iterator[handlers.Event]:  # noqa: ARG002
        match event:
            case TextDelta():
                self._sent_text += event.text
                tokens = [*self._waiting, *event.tokens]
                self._waiting = tokens[-1:]
                yield from self._events(self._told(tokens[:-1], self._texts))
            case Finished():
                yield from self._last(event, extra)

    def _last(self, finished: Finished, extra: Mapping[str, object]) -> Iterator[handlers.Event]:
        tokens = self._waiting
        if not tokens and finished.stop_token is None:
            tokens = [TokenInfo(0, b"", None)]  # a grammar may end a text without one
        *before, last = self._events(self._told(tokens, self._texts, finished))
        last["generated_text"] = self._echo + self._sent_text + stop_text(finished)
        last["details"] = {
            "finish_reason": _finish_word(finished),
            "generated_tokens": finished.completion_tokens,
            "seed": finished.seed,
            "input_length": self.outcomes[0].prompt_tokens,
        }
        yield from before
        yield {**last, **extra}

    def _events(self, told: Iterable[tuple[TgiToken, list[TgiToken]]]) -> Iterator[TgiEvent]:
        for token, tops in told:
            self._num_sent += 1
            event: TgiEvent = {"index": self._num_sent, "token": token, "generated_text": None, "details": None}
            if self.body.logprobs:
                event["top_tokens"] = tops
            yield event

    def _told(
        self, tokens: Sequence[TokenInfo], texts: TokenTexts, finished: Finished | None = None
    ) -> Iterator[tuple[TgiToken, list[TgiToken]]]:
        """Yield the next tokens of an answer, each with its likeliest alternatives; with `finished`, also the last."""
        for place, info in enumerate(tokens, 1):
            tops = self._top(info, texts)
            is_last = finished is not None and place == len(tokens)
            yield _token(info, texts.take(info.data, is_last=is_last), special=False), tops
        if finished is not None and (stop := finished.stop_token) is not None:
            yield _token(stop, stop.data.decode(errors="replace"), special=True), self._top(stop, texts)

    def _text(self, outcome: Outcome) -> str:
        return self._echo + outcome.text + stop_text(outcome.end)

    def _details(self, outcome: Outcome) -> TgiDetails:
        finished, prompt = outcome.end, TokenTexts()
        told = list(self._told(outcome.tokens, TokenTexts(), finished))
        details: TgiDetails = {
            "finish_reason": _finish_word(finished),
            "generated_tokens": finished.completion_tokens,
            "seed": finished.seed,
            "prefill": [
                {"id": info.token, "text": prompt.take(info.data), "logprob": _logprob(info)} for info in outcome.prompt
            ],
            "tokens": [token for token, _ in told],
        }
        if self.body.logprobs:
            details["top_tokens"] = [tops for _, tops in told]
        return details

    @property
    def _echo(self) -> str:
        return text_of(self.engine, self.body.prompt[0]) if self.body.echo else ""

    def _top(self, info: TokenInfo, texts: TokenTexts) -> list[TgiToken]:
        """Return the alternatives of the next token, each with the text that it would have in its place."""
        tops = [TokenInfo(token, self.engine.detokenize([token]), logprob) for token, logprob in info.top]
        return [_token(top, texts.preview(top.data), special=top.token == 0) for top in tops]


def _token(info: TokenInfo, text: str, *, special: bool) -> TgiToken:
    return {"id": info.token, "text": text, "logprob": _logprob(info), "special": special}


def _logprob(info: TokenInfo) -> float | None:
    return None if info.logprob is None else max(info.logprob, LEAST_LOGPROB)


def _finish_word(finished: Finished) -> FinishWord:
    if finished.reason == "length":
        return "length"
    return "stop_sequence" if isinstance(finished.stop, bytes) else "eos_token"


ROUTES = RouteTable(error_form=tgi_error)


@ROUTES.post("/generate", answer=TgiAnswer, chunk=TgiEvent)
async def generate(call: Call, body: TgiRequest) -> Answer:
    """Continue a text, as text-generation-inference does."""
    return await _answer(call, body)


@ROUTES.post("/", answer=list[TgiAnswer], chunk=TgiEvent)
async def generate_in_list(call: Call, body: TgiRequest) -> Answer:
    """The same, in a list if it is not a stream."""
    return await _answer(call, body, listed=True)


@ROUTES.post("/generate_stream", answer=TgiEvent, content_type=EVENTS)
async def generate_stream(call: Call, body: TgiRequest) -> Answer:
    """The same, as a stream."""
    return await _answer(call, body.model_copy(update={"stream": True}))


async def _answer(call: Call, body: TgiRequest, *, listed: bool = False) -> Answer:
    if body.num_prompts != 1:
        raise InvalidRequestError("inputs", f"{body.num_prompts} prompts", "one prompt")
    if body.n != 1:
        raise InvalidRequestError("n", body.n, "1; best_of makes several answers")
    if body.stream and body.copies > 1:
        raise InvalidRequestError(
            "best_of", body.copies, "1 with a stream, since the best answer is known only at the end"
        )
    if body.stream and body.decoder_input_details:
        raise InvalidRequestError("decoder_input_details", True, "false with a stream")
    return await TgiDialect(await prepare_completions(call, body), listed=listed).answer()


@ROUTES.get("/info")
async def info(call: Call) -> TgiInfo:
    """Facts of the model, in text-generation-inference's form."""
    facts, limits = call.engine.info, call.limits
    answer: TgiInfo = {
        "model_id": facts.model,
        "model_sha": None,
        "model_dtype": facts.weights,
        "model_device_type": facts.device,
        "max_concurrent_requests": facts.num_slots + limits.max_queued,
        "max_best_of": 128,
        "max_stop_sequences": limits.max_stop_strings,
        "max_input_length": limits.max_prompt_tokens,
        "max_input_tokens": limits.max_prompt_tokens,
        "max_total_tokens": limits.max_prompt_tokens + limits.max_answer_tokens,
        "max_batch_size": facts.num_slots,
        "version": version("rnn-engine"),
        "router": "rnn-engine",
        "sha": None,
        "docker_label": None,
    }
    if facts.embedding is not None:
        answer["model_type"] = {"embedding": {"pooling": "last_token"}}
        answer["max_batch_tokens"] = limits.max_prompt_tokens
        answer["max_client_batch_size"] = limits.max_inputs
    return answer
