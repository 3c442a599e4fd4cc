"""The routes of KoboldCpp, as KoboldAI Lite and SillyTavern use them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.operations.parallel import Numbered, ParallelRequests
from rnn_engine.requests import Event, Finished, TextDelta, TokenInfo
from rnn_engine_server.apis.common.answering import Dialect, Prepared, stop_text
from rnn_engine_server.apis.common.generation import PromptText
from rnn_engine_server.apis.openai.completions import prepare_completions
from rnn_engine_server.apis.openai.dialect import CompletionTokens, chat_logprobs
from rnn_engine_server.apis.openai.schemas import ChatTokenLogprob, CompletionLogprobs, CompletionRequest
from rnn_engine_server.core import handlers
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.handlers import SSE, Answer, Long, RouteTable
from rnn_engine_server.core.kept import BoundedStore
from rnn_engine_server.core.routing import EVENTS, SETTINGS, AppKey
from rnn_engine_server.core.schema import RefusedError, RequestBody, Timings
from rnn_engine_server.core.tasks import cancel_tasks

_UNITED_VERSION = "1.2.5"  # of the API of KoboldAI United, as KoboldCpp reports it
_VERSION = "1.98"  # of KoboldCpp

_STEPS = {0: ["top_k"], 1: [], 2: ["top_p", "min_p"], 3: [], 4: ["typ_p"], 5: ["temperature"], 6: ["penalties", "dry"]}
_LAST_STEPS = ["top_n_sigma", "xtc"]
_BANS = ("banned_tokens", "banned_strings")
_TEXTS = {"type": ["array", "null"], "items": {"type": "string"}, "description": "Texts that are never written."}
_ORDER_FORM = f"a list of numbers from 0 to {len(_STEPS) - 1}, each at most once"
_NUM_TOPS = 5  # likeliest tokens with `logprobs`, as in KoboldCpp
_DEFAULT_RANGE = 320  # tokens that the repetition penalty counts


class KoboldRequest(CompletionRequest):
    """A text to continue, with KoboldCpp's field names. The fields of completions mean the same here."""

    ignored: ClassVar = frozenset(
        {
            "max_context_length",
            "quiet",
            "sampler_full_determinism",
            "use_authors_note",
            "use_memory",
            "use_story",
            "use_userscripts",
            "use_world_info",
        }
    )
    neutral: ClassVar = {
        "audio": ([],),
        "bypass_eos": (False,),
        "grammar_retain_state": (False,),
        "images": ([],),
        "negative_prompt": ("",),
        "prompt_logprobs": (0,),
        "render_special": (False,),
    }
    lacking: ClassVar = {"rep_pen_slope": (1,), "smoothing_curve": (1,), "tfs": (1,), "top_a": (0,)}
    aliases: ClassVar = {
        "ban_eos_token": "ignore_eos",
        "max_length": "max_tokens",
        "sampler_seed": "seed",
        "stop_sequence": "stop",
        "use_default_badwordsids": "ignore_eos",
    }
    unfolded: ClassVar = {
        "banned_strings": _TEXTS,
        "banned_tokens": _TEXTS,
        "custom_token_bans": {
            "type": ["string", "null"],
            "description": "Ids of tokens that are never drawn, divided by commas.",
        },
        "logprobs": {
            "type": ["boolean", "null"],
            "description": f"Return the log-probabilities of the tokens, each with the {_NUM_TOPS} likeliest ones.",
        },
        "memory": {"type": ["string", "null"], "description": "A text before the prompt."},
        "sampler_order": {
            "anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
            "description": "The order of the steps: 0 top-k, 2 top-p and min-p, 4 typical, 5 temperature, 6 penalties; "
            "1 and 3, which stand for top-a and tail-free sampling, have no effect.",
        },
        "singleline": {"type": ["boolean", "null"], "description": "End the answer at the first line break."},
    }

    genkey: str = Field(
        default="",
        max_length=256,
        description="A name by which `/api/extra/generate/check` and `/api/extra/abort` find the generation.",
    )
    trim_stop: bool = Field(default=True, description="Leave the stop string out of the text.")

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        unfolded = {name: value for name, value in fields.items() if name not in cls.unfolded}
        if isinstance(stops := unfolded.get("stop_sequence"), list):
            unfolded["stop_sequence"] = _without_empty(stops, "stop_sequence")
        if unfolded.get("grammar") == "":
            del unfolded["grammar"]
        if unfolded.get("ban_eos_token") is not None:
            unfolded.pop("use_default_badwordsids", None)
        if unfolded.get("rep_pen") is not None and unfolded.get("rep_pen_range") is None:
            unfolded["rep_pen_range"] = _DEFAULT_RANGE
        if unfolded.get("rep_pen_range") == 0:
            unfolded["rep_pen_range"] = -1  # 0 stands for the whole text
        return unfolded | dict(cls._made(fields, unfolded))

    @classmethod
    def _made(cls, fields: Mapping[str, object], others: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        """Yield the fields that those in `unfolded` stand for. `others` are the other fields of the body."""
        bans = [text for name in _BANS for text in _without_empty(fields.get(name), name)]
        if bans:
            yield "bad_words", [*_without_empty(others.get("bad_words"), "bad_words"), *bans]
        if fields.get("logprobs") not in (None, False, True):
            raise RefusedError(fields["logprobs"], "true or false", below="logprobs")
        if fields.get("logprobs"):
            yield "logprobs", _NUM_TOPS
        if memory := fields.get("memory"):
            prompt = others.get("prompt", "")
            if not isinstance(memory, str) or not isinstance(prompt, str):
                raise RefusedError(memory, "a text, and a text as the prompt", below="memory")
            yield "prompt", memory + prompt
        if fields.get("singleline") is True:
            stops = others.get("stop_sequence") or []
            yield "stop_sequence", [*stops, "\n"] if isinstance(stops, list) else stops
        if (order := fields.get("sampler_order")) is not None:
            yield "samplers", _step_names(order)
        if banned := fields.get("custom_token_bans"):
            bias = others.get("logit_bias") or {}
            if not isinstance(banned, str) or not isinstance(bias, dict):
                raise RefusedError(banned, "ids of tokens, divided by commas", below="custom_token_bans")
            ids = [each.strip() for each in banned.split(",")]
            yield "logit_bias", {**bias, **{each: False for each in ids if each.isascii() and each.isdigit()}}


def _without_empty(texts: object, name: str) -> list[object]:
    """Return the texts in the field `name`, which may be null."""
    if not isinstance(texts, list | None):
        raise RefusedError(texts, "a list of texts", below=name)
    return [text for text in texts or () if text is not None and text != ""]


def _step_names(order: object) -> list[str]:
    if not isinstance(order, list) or not all(type(step) is int and step in _STEPS for step in order):
        raise RefusedError(order, _ORDER_FORM, below="sampler_order")
    if len(set(order)) < len(order):
        raise RefusedError(order, _ORDER_FORM, below="sampler_order")
    return [name for step in order for name in _STEPS[step]] + _LAST_STEPS


class GenkeyRequest(RequestBody):
    """A request about a running generation. The body may be empty."""

    may_be_empty: ClassVar = True

    genkey: str = Field(default="", description="The `genkey` of the generation; empty for one without a `genkey`.")


class TokenCountRequest(RequestBody):
    """A request to count the tokens of a text."""

    ignored: ClassVar = frozenset({"special"})

    prompt: PromptText = Field(description="The text.")


FinishWord: TypeAlias = Literal["stop", "length"]


class KoboldLogprobs(CompletionLogprobs):
    """The log-probabilities of an answer's tokens, in the forms of OpenAI's completions and of its chats."""

    content: list[ChatTokenLogprob]


class KoboldText(TypedDict):
    """An answer. `logprobs` is absent unless the request sets it."""

    text: str
    finish_reason: FinishWord
    prompt_tokens: int
    completion_tokens: int
    logprobs: NotRequired[KoboldLogprobs]


class KoboldLastLogprobs(TypedDict):
    """The log-probabilities of a client's last generation; null if it did not ask for them or they are evicted."""

    logprobs: KoboldLogprobs | None


class KoboldAnswer(TypedDict):
    """The answer: a list with one text."""

    results: list[KoboldText]


class KoboldEvent(TypedDict):
    """An event of a stream, called `message`. `finish_reason` is null until the last one."""

    token: str
    finish_reason: FinishWord | None


class KoboldPartText(TypedDict):
    text: str


class KoboldPart(TypedDict):
    """The text so far of a running generation; empty if none runs."""

    results: list[KoboldPartText]


class KoboldAbort(TypedDict):
    """Whether a generation was ended."""

    success: Literal["true", "false"]
    done: Literal["true", "false"]


class KoboldResult(TypedDict):
    result: str


class KoboldNumber(TypedDict):
    value: int


class KoboldTokens(TypedDict):
    """The number of a text's tokens, and their ids."""

    value: int
    ids: list[int]


class KoboldVersion(TypedDict):
    """The version of KoboldCpp's API, and what the server can do. `protected` is true if it asks for API keys."""

    result: Literal["KoboldCpp"]
    version: str
    protected: bool
    txt2img: Literal[False]
    vision: Literal[False]
    transcribe: Literal[False]
    multiplayer: Literal[False]
    websearch: Literal[False]
    tts: Literal[False]


class KoboldPerf(TypedDict):
    """Times in seconds and counts. `last_...` are those of the client's last generation: `last_process` is the time of
    its prompt, `last_eval` that of its answer."""

    last_process: float
    last_eval: float
    last_token_count: int
    total_gens: int
    queue: int
    idle: Literal[0, 1]
    uptime: float
    idletime: float


class KoboldErrorDetail(TypedDict):
    msg: str
    type: str


class KoboldError(TypedDict):
    detail: KoboldErrorDetail


_ERROR_TYPES = {401: "unauthorized", 429: "service_unavailable", 503: "service_unavailable"}


def kobold_error(failure: Failure) -> tuple[int, KoboldError]:
    """Return the HTTP status and the body of an error in KoboldCpp's form."""
    kind = _ERROR_TYPES.get(failure.status, "server_error" if failure.status >= 500 else "bad_input")
    return failure.status, {"detail": {"msg": failure.message, "type": kind}}


# Running generations, which other requests of the same client can read and abort.


_MOST_KEPT, _MOST_KEPT_BYTES = 256, 1 << 26  # of the log-probabilities of last generations
_TOKEN_BYTES = 1000  # that a token's log-probabilities take, with those of the likeliest ones, about


class Generation(Dialect[KoboldRequest]):
    """A generation that is answered as KoboldCpp does. While it runs, others can read its text, and end it."""

    stream_form = replace(SSE, name=lambda event: "error" if "detail" in event else "message")

    def __init__(self, prepared: Prepared[KoboldRequest]) -> None:
        super().__init__(prepared)
        self.text = ""  # so far
        self.logprobs: KoboldLogprobs | None = None
        self.aborted = asyncio.Event()
        """Set to end the generation with its text so far."""
        self._tokens = CompletionTokens(self.engine)
        if self.body.logprobs is not None:
            self.logprobs = {"content": [], "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def whole(self, kept: Sequence[int], extra: Mapping[str, object]) -> Mapping[str, object]:
        outcome = self.outcomes[kept[0]]
        result: KoboldText = {
            "text": outcome.text + self._stop(outcome.end),
            "finish_reason": outcome.end.reason,
            "prompt_tokens": self.usage["prompt_tokens"],
            "completion_tokens": self.usage["completion_tokens"],
        }
        self._describe(outcome.tokens)
        if self.logprobs is not None:
            result["logprobs"] = self.logprobs
        return {"results": [result], **extra}

    def events(self, index: int, event: Event, extra: Mapping[str, object]) -> Iterator[handlers.Event]:  # noqa: ARG002
        match event:
            case TextDelta():
                self._describe(event.tokens)
                if event.text:
                    yield {"token": event.text, "finish_reason": None, **extra}
            case Finished():
                yield {"token": self._stop(event), "finish_reason": event.reason, **extra}

    async def groups(self, running: ParallelRequests) -> AsyncGenerator[list[Numbered], None]:
        """Yield the events as they come. When the generation is aborted, end what has not ended."""
        groups, aborting = aiter(running), asyncio.create_task(self.aborted.wait())
        try:
            while True:
                coming = asyncio.ensure_future(anext(groups, None))
                try:
                    await asyncio.wait((coming, aborting), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not coming.done():
                        await cancel_tasks(coming)
                if coming.cancelled():
                    unfinished = [(index, each) for index, each in enumerate(self.outcomes) if each.finished is None]
                    yield [(index, Finished("stop", each.num_tokens, seed=0)) for index, each in unfinished]
                    return
                if (group := coming.result()) is None:
                    return
                self.text += "".join(
                    event.text for index, event in group if index == 0 and isinstance(event, TextDelta)
                )
                yield group
        finally:
            aborting.cancel()

    def _describe(self, tokens: Sequence[TokenInfo]) -> None:
        """Add the log-probabilities of the answer's next tokens, if they are wanted."""
        if self.logprobs is not None:
            self.logprobs["content"] += chat_logprobs(self.engine, tokens)["content"] or []
            for name, entries in self._tokens.describe(tokens).items():
                self.logprobs[name] += entries  # type: ignore[literal-required]

    def _stop(self, finished: Finished) -> str:
        return "" if self.body.trim_stop else stop_text(finished)


class Generations:
    """All running generations, by client and `genkey`, and what is told of the last ones. For the event loop."""

    def __init__(self) -> None:
        self.outcomes: BoundedStore[str, tuple[Timings, float]] = BoundedStore(_MOST_KEPT, _MOST_KEPT)
        """The times of each client's last generation, and when it ended, by `time.monotonic`."""
        self._running: dict[tuple[str, str], list[Generation]] = defaultdict(list)
        self._last: BoundedStore[tuple[str, str], KoboldLogprobs] = BoundedStore(_MOST_KEPT, _MOST_KEPT_BYTES)

    def begin(self, client: str, generation: Generation) -> None:
        """Count a generation as running until `end` is called."""
        self._running[client, generation.body.genkey].append(generation)

    def end(self, client: str, generation: Generation) -> None:
        """Count a generation as ended, and keep its times and log-probabilities. A second call does nothing."""
        key = client, generation.body.genkey
        running = self._running[key]
        if generation in running:
            running.remove(generation)
            if (timings := generation.outcomes[0].times().get("timings")) is not None:
                self.outcomes.put(client, (timings, time.monotonic()), 1)
            for each in {key, (client, "")}:
                self._last.pop(each)
                if (found := generation.logprobs) is not None:
                    self._last.put(each, found, _TOKEN_BYTES * (1 + len(found["tokens"])))
        if not running:
            del self._running[key]

    def last_logprobs(self, client: str, genkey: str) -> KoboldLogprobs | None:
        """Return the log-probabilities of a client's last generation of this key; of any if the key is empty."""
        return self._last.get((client, genkey))

    def find(self, client: str, genkey: str) -> Sequence[Generation]:
        """Return a client's running generations of this key, the latest last."""
        return tuple(self._running.get((client, genkey), ()))


GENERATIONS = AppKey("generations", Generations)


ROUTES = RouteTable(error_form=kobold_error)


@ROUTES.post("/api/v1/generate", "/api/latest/generate", answer=KoboldAnswer)
async def generate(call: Call, body: KoboldRequest) -> Answer:
    """Continue a text, as KoboldCpp does. Errors of all of its routes have KoboldCpp's form, too."""
    return await _answer(call, body.model_copy(update={"stream": False}))


@ROUTES.post("/api/extra/generate/stream", answer=KoboldEvent, content_type=EVENTS)
async def generate_stream(call: Call, body: KoboldRequest) -> Answer:
    """Continue a text and stream it, as KoboldCpp does."""
    return await _answer(call, body.model_copy(update={"stream": True}))


async def _answer(call: Call, body: KoboldRequest) -> Answer:
    if body.num_prompts != 1 or body.n != 1:
        raise InvalidRequestError("n", body.n, "1, and one prompt")
    if body.stream and body.copies != 1:
        raise InvalidRequestError("best_of", body.copies, "1 with a stream")
    generation = Generation(await prepare_completions(call, body))
    generations, client = call.app[GENERATIONS], call.client.name
    generations.begin(client, generation)
    call.ending.callback(generations.end, client, generation)

    async def keep() -> None:
        generations.end(client, generation)

    return await generation.answer(keep)


_UNNAMED = GenkeyRequest()


@ROUTES.get("/api/extra/generate/check", routine=True, uses_model=False)
@ROUTES.post("/api/extra/generate/check", routine=True, uses_model=False)
async def check(call: Call, body: GenkeyRequest = _UNNAMED) -> KoboldPart:
    """The text so far of the client's running generation of that `genkey`, or of one without a `genkey`."""
    found = call.app[GENERATIONS].find(call.client.name, body.genkey)
    return {"results": [{"text": found[-1].text if found else ""}]}


@ROUTES.get("/api/extra/last_logprobs", uses_model=False)
@ROUTES.post("/api/extra/last_logprobs", uses_model=False)
async def last_logprobs(call: Call, body: GenkeyRequest = _UNNAMED) -> Long[KoboldLastLogprobs]:
    """The log-probabilities of the client's last generation of that `genkey`, or of any if it is empty."""
    found = call.app[GENERATIONS].last_logprobs(call.client.name, body.genkey)
    return Long(0 if found is None else _NUM_TOPS * len(found["tokens"]), lambda: {"logprobs": found})


@ROUTES.post("/api/extra/abort", uses_model=False)
async def abort(call: Call, body: GenkeyRequest) -> KoboldAbort:
    """End the client's running generations of that `genkey`; they are answered with their texts so far."""
    found = call.app[GENERATIONS].find(call.client.name, body.genkey)
    for generation in found:
        generation.aborted.set()
    done: Literal["true", "false"] = "true" if found else "false"
    return {"success": done, "done": done}


@ROUTES.post("/api/extra/tokencount", "/api/extra/tokenize")
async def count_tokens(call: Call, body: TokenCountRequest) -> Long[KoboldTokens]:
    """The number of tokens of a text, and their ids."""
    engine, limits = call.engine, call.limits

    def make() -> KoboldTokens:
        ids = engine.tokenize(body.prompt)
        limits.check("max_prompt_tokens", "prompt", len(ids))
        return {"value": len(ids), "ids": ids}

    return Long(len(body.prompt), make)


@ROUTES.get("/api/v1/model", "/api/latest/model")
async def model(call: Call) -> KoboldResult:
    """The name of the model."""
    return {"result": call.engine.info.model}


@ROUTES.get("/api/v1/info/version", "/api/latest/info/version", uses_model=False)
async def united_version(_call: Call) -> KoboldResult:
    """The version of KoboldAI United whose API this is."""
    return {"result": _UNITED_VERSION}


@ROUTES.get("/api/extra/version", uses_model=False)
async def version(call: Call) -> KoboldVersion:
    """The version of KoboldCpp whose API this is, and what it can do here."""
    return {
        "result": "KoboldCpp",
        "version": _VERSION,
        "protected": bool(call.app[SETTINGS].auth.keys),
        "txt2img": False,
        "vision": False,
        "transcribe": False,
        "multiplayer": False,
        "websearch": False,
        "tts": False,
    }


@ROUTES.get("/api/v1/config/max_length", "/api/latest/config/max_length", uses_model=False)
async def max_length(call: Call) -> KoboldNumber:
    """The most tokens of an answer."""
    return {"value": call.limits.max_answer_tokens}


@ROUTES.get(
    "/api/v1/config/max_context_length",
    "/api/latest/config/max_context_length",
    "/api/extra/true_max_context_length",
    uses_model=False,
)
async def max_context_length(call: Call) -> KoboldNumber:
    """The most tokens of a prompt: the server's limit, since a state has no window of a fixed length."""
    return {"value": call.limits.max_prompt_tokens}


@ROUTES.get("/api/extra/perf", routine=True)
async def perf(call: Call) -> KoboldPerf:
    """Times of the client's last generation, and how busy the server is."""
    engine, last = call.engine, call.app[GENERATIONS].outcomes.get(call.client.name)
    stats = engine.stats()
    return {
        "last_process": 0.0 if last is None else last[0]["prompt_ms"] / 1000,
        "last_eval": 0.0 if last is None else last[0]["predicted_ms"] / 1000,
        "last_token_count": 0 if last is None else last[0]["predicted_n"],
        "total_gens": sum(engine.counters().outcomes.values()),
        "queue": stats.queued,
        "idle": 0 if stats.active else 1,
        "uptime": max(time.time() - engine.info.created, 0.0),
        "idletime": 0.0 if stats.active or last is None else time.monotonic() - last[1],
    }
