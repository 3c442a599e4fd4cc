"""The request fields that completions and chats share: the prompt, stop strings, and how the answer is sent."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import BeforeValidator, FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.bounds import MAX_DRAFT
from rnn_engine.errors import InvalidRequestError, TokenIds
from rnn_engine.interface import EngineLike
from rnn_engine.loading.parts import MAX_LOGPROBS
from rnn_engine.requests import MAX_PRIORITY, GenerateRequest, TokenInfo
from rnn_engine_server.apis.common.sampling import GrammarBody
from rnn_engine_server.apis.common.states import SaveAs
from rnn_engine_server.core.call import Call, work
from rnn_engine_server.core.json_text import WholeNumbers
from rnn_engine_server.core.kept import SLOT_PROMPTS
from rnn_engine_server.core.schema import (
    INTEGER,
    INTEGERS,
    NULL,
    STRING,
    STRINGS,
    Bounded,
    Parsed,
    RefusedError,
    RequestBody,
    Schema,
    is_integers,
)
from rnn_engine_server.core.settings import Limits
from rnn_engine_states.named.entry import NamedState
from rnn_engine_states.tokens import pack

Prompt: TypeAlias = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MixedPrompt:
    """A prompt of texts and token ids in any order."""

    parts: tuple[int | str, ...]

    def __len__(self) -> int:
        return sum(len(part) if isinstance(part, str) else 1 for part in self.parts)


AnyPrompt: TypeAlias = Prompt | MixedPrompt

_PROMPT_WORDS = (
    "a string, a list of token ids, which may have strings between them if it is the only prompt, or a list of "
    "such prompts"
)


def parse_prompts(value: object) -> tuple[AnyPrompt, ...]:
    """Parse a request field that holds a prompt or a list of prompts. A list that contains token ids is one prompt."""
    if isinstance(value, list) and value and not any(type(item) is int for item in value):
        return tuple(_parse_prompt(item, value) for item in value)
    if value == []:
        raise RefusedError(value, _PROMPT_WORDS)
    return (_parse_prompt(value, value),)


def parse_joined(value: object) -> tuple[AnyPrompt, ...]:
    """Parse a request field with prompts; a list of texts is joined to one text, and null is an empty text.

    Other values are parsed as by `parse_prompts`.
    """
    if value is None:
        return ("",)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ("".join(value),)
    return parse_prompts(value)


def _parse_prompt(value: object, whole: object) -> AnyPrompt:
    match value:
        case str():
            return value
        case list() if is_integers(value):
            return _token_ids(value)
        case list() if all(type(item) is int or isinstance(item, str) for item in value):
            return MixedPrompt(tuple(value))
        case {"prompt_string": str(text), **others} if not others.get("multimodal_data"):
            return text
        case {"prompt_string": str()}:
            raise RefusedError(value, "a prompt without multimodal_data, since the model reads text only")
    raise RefusedError(whole, _PROMPT_WORDS)


def _parse_input(value: object) -> Prompt:
    if isinstance(value, str):
        return value
    if is_integers(value):
        return _token_ids(value)
    raise RefusedError(value, "a text or a list of token ids")


def _token_ids(numbers: list[int]) -> tuple[int, ...]:
    ids = TokenIds(numbers)
    if isinstance(numbers, WholeNumbers):
        ids.greatest = numbers.greatest
    return ids


def check_prompts(limits: Limits, field: str, prompts: Sequence[AnyPrompt], most: int | None = None) -> None:
    """Raise InvalidRequestError if a request's texts or token ids exceed the limits.

    The tokens of texts are not counted yet. Of each prompt, only the last `most` tokens are used if that is given.
    """
    parts = [_parts(prompt) for prompt in prompts]
    limits.check(
        "max_text_bytes", field, sum(len(part.encode()) for each in parts for part in each if isinstance(part, str))
    )
    ids = [sum(len(part) for part in each if not isinstance(part, str)) for each in parts]
    limits.check("max_prompt_tokens", field, sum(ids if most is None else (min(count, most) for count in ids)))


def check_inputs(limits: Limits, field: str, inputs: Sequence[AnyPrompt]) -> None:
    """Raise InvalidRequestError if a request has more inputs, or longer ones, than the limits allow."""
    limits.check("max_inputs", field, len(inputs))
    check_prompts(limits, field, inputs)


ONE_PROMPT = Bounded(lambda limits, field, prompt: check_prompts(limits, field, [prompt]))
INPUTS = Bounded(check_inputs)
_MIXED = {"type": "array", "items": {"anyOf": [INTEGER, STRING]}}
_OBJECT = {"type": "object", "required": ["prompt_string"], "properties": {"prompt_string": STRING}}
PROMPT_FORMS: tuple[Schema, ...] = (STRING, _MIXED, _OBJECT, {"type": "array", "items": {"anyOf": [_MIXED, _OBJECT]}})
Prompts: TypeAlias = Annotated[tuple[AnyPrompt, ...], Parsed(parse_prompts, *PROMPT_FORMS)]
JoinedPrompts: TypeAlias = Annotated[tuple[AnyPrompt, ...], Parsed(parse_joined, *PROMPT_FORMS, NULL)]
"""Prompts as ai00 takes them: the texts of a list are joined to one prompt, and null is an empty prompt."""
Input: TypeAlias = Annotated[Prompt, Parsed(_parse_input, STRING, INTEGERS), ONE_PROMPT]
PromptText: TypeAlias = Annotated[str, ONE_PROMPT]
"""A text whose size the limits on prompts bound."""


def _parts(prompt: AnyPrompt) -> Sequence[Prompt]:
    if not isinstance(prompt, MixedPrompt):
        return (prompt,)
    return [part if isinstance(part, str) else (part,) for part in prompt.parts]


def tokens_of(engine: EngineLike, prompt: AnyPrompt) -> Sequence[int]:
    """Return the token ids of a prompt. Ids that a client sent are not checked."""
    match prompt:
        case str():
            return engine.tokenize(prompt)
        case MixedPrompt():
            return [token for part in _parts(prompt) for token in tokens_of(engine, part)]
    return prompt


def text_of(engine: EngineLike, prompt: AnyPrompt) -> str:
    """Return the text of a prompt, with U+FFFD for bytes of tokens that are no UTF-8."""
    return prompt if isinstance(prompt, str) else engine.detokenize(tokens_of(engine, prompt)).decode(errors="replace")


# The fields that completions and chats share: what ends a text, and how the answer is sent.


def _parse_stop(value: object) -> tuple[str, ...]:
    """Return the stop strings in a request field, which has one string, a list of them, or null for none."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise RefusedError(value, "null, a string, or a list of strings, none of them empty")
    return tuple(stops)


Stop: TypeAlias = Annotated[tuple[str, ...], Parsed(_parse_stop, STRING, STRINGS, NULL)]

_NO_LIMIT = -1


class StreamOptions(RequestBody):
    ignored: ClassVar = frozenset({"include_obfuscation"})

    include_usage: bool = Field(default=False, description="Send one more chunk, without choices, that holds `usage`.")
    continuous_usage_stats: bool = Field(
        default=False, description="With `include_usage`: every chunk holds `usage`, with the tokens so far."
    )


class GenerationBody(GrammarBody):
    """The request fields that every generation of text has: for sampling, stops, the number of answers, streaming."""

    ignored: ClassVar = frozenset(
        {
            "guided_decoding_backend",
            "metadata",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "user",
        }
    )
    lacking: ClassVar = {"prompt_logprobs": (0,), "store": (False,)}

    aliases: ClassVar = {
        "max_new_tokens": "max_tokens",
        "n_predict": "max_tokens",
        "num_predict": "max_tokens",
        "speculative.n_max": "speculate",
    }

    max_tokens: int = Field(
        default=256,
        description="The most tokens to generate. 0 runs only the prompt, -1 generates as many as the limits allow.",
    )
    min_tokens: int = Field(
        default=0,
        ge=0,
        description="Until this many tokens are generated, no token that ends a text is drawn, and `stop` has no "
        "effect.",
    )
    stop_token_ids: Annotated[list[int], FailFast()] = Field(
        default=[], description="Ids of further tokens that end the answer."
    )
    stop: Stop = Field(default=(), description="Texts before which the answer ends.")
    n: int = Field(
        default=1,
        ge=1,
        le=128,
        description="How many answers to return for a prompt. Each has a seed of its own, derived from `seed`.",
    )
    stream: bool = Field(default=False, description="Send the answer as server-sent events while it is made.")
    stream_options: StreamOptions | None = Field(default=None, description="Only with `stream`.")
    id_slot: int | None = Field(
        default=None,
        ge=-1,
        description="A number for the prompt, by which `/slots/{id}` finds it later. Null and -1: no number.",
    )
    speculate: int | None = Field(
        default=None,
        ge=0,
        le=MAX_DRAFT,
        description="The most tokens to run speculatively in a step. This is done if the answer repeats text of "
        "itself or of the prompt, and if it is faster; the answer is the same. 0: none. Null, or more than the "
        "server's `--speculate`: as many as `--speculate`.",
    )
    priority: int = Field(
        default=0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Among a client's requests that wait for a slot, the one with the greatest priority comes first, "
        "then the earliest. One of every 8 slots goes to the earliest regardless of its priority.",
    )
    timeout: float | None = Field(
        default=None,
        gt=0,
        description="Seconds after which the answer ends with the text so far and the `finish_reason` `length`. If "
        "there is no text yet, the request fails with 504. Null: the most that the server allows.",
    )
    save_as: SaveAs | None = Field(
        default=None,
        description="Save the state at the end of the answer under this name: a name, or an object with one. Only for "
        "requests with one answer. If it is the name in `state`, that name then stands for the new state. The "
        "answer's `saved_state` describes the saved state. If it can't be saved, `saved_state` is null and "
        "`save_error` says why.",
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options", self.stream_options.model_dump(), "null unless stream is true")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_stop_strings", "stop", len(self.stop))
        limits.check("max_stop_bytes", "stop", sum(map(len, self.stop_bytes)))
        limits.check("max_stop_strings", "stop_token_ids", len(self.stop_token_ids))
        if self.timeout is not None:
            limits.check("max_request_seconds", "timeout", self.timeout)
        answers = self.num_prompts * self.copies
        limits.check("max_answers", "n" if self.num_prompts == 1 else "prompt", answers)
        if not self.stream or self.save_as is not None:  # a stream is held only to save its state
            limits.check("max_answer_tokens", "max_tokens", answers * self.max_tokens)
            if self.alternatives is not None:
                entries = answers * self.max_tokens * (1 + self.alternatives)
                limits.check("max_logprob_entries", "logprobs", entries)

    def copies_of(
        self, calls: Sequence[GenerateRequest], limits: Limits, tokenize: Callable[[str], Sequence[int]]
    ) -> list[GenerateRequest]:
        """Return the engine requests for all answers: for each of `calls` as many as a prompt has answers.

        `calls` has one request for each prompt. All must have the same tokens that end a text.
        """
        samplings = self.samplings(self.copies, tokenize, calls[0].stop_tokens)
        return [
            replace(
                call,
                sampling=sampling,
                max_tokens=self.most_tokens(limits),
                min_tokens=self.min_tokens,
                stop_tokens=(*call.stop_tokens, *self.stop_token_ids),
                report_progress=self.reports_progress,
                speculate=self.speculate,
            )
            for call in calls
            for sampling in samplings
        ]

    @property
    def reports_progress(self) -> bool:
        """True if the stream of an answer reports how much of the prompt was processed."""
        return False

    @property
    def tells_times(self) -> bool:
        """True if each event of a stream has the times, not only the last one."""
        return False

    def most_tokens(self, limits: Limits) -> int:
        """Return the largest number of tokens that one answer may have, by the request or else by `limits`."""
        if self.max_tokens != _NO_LIMIT:
            return self.max_tokens
        if self.stream and self.save_as is None:
            return 2**31 - 1
        answers = self.num_prompts * self.copies
        most = limits.max_answer_tokens // answers
        if self.alternatives is None:
            return most
        return min(most, limits.max_logprob_entries // (answers * (1 + self.alternatives)))

    @property
    def num_prompts(self) -> int:
        return 1

    @property
    def alternatives(self) -> int | None:
        """The number of likeliest tokens to list at each position, or None if the client wants no log-probabilities."""
        return None

    @property
    def copies(self) -> int:
        """The number of answers that are generated for each prompt; the best `n` of them are returned."""
        return self.n

    @property
    def stop_bytes(self) -> tuple[bytes, ...]:
        return tuple(stop.encode() for stop in self.stop)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def tells_usage(self) -> bool:
        """Whether each chunk of a stream has the token counts so far."""
        return self.stream_options is not None and self.include_usage and self.stream_options.continuous_usage_stats


class ProgressBody(GenerationBody):
    """The request fields of a generation, with those for reports in its stream: the prompt's progress, and times."""

    return_progress: bool = Field(
        default=False,
        description="With `stream`: send `prompt_progress` while the prompt is run. It says how many tokens the "
        "prompt has (`total`), how many were in the cache (`cache`), and how many are done, cached ones included "
        "(`processed`), after `time_ms`.",
    )
    timings_per_token: bool = Field(
        default=False, description="With `stream`: every event has `timings`, not only the last one."
    )

    @property
    def reports_progress(self) -> bool:
        return self.return_progress and self.stream

    @property
    def tells_times(self) -> bool:
        return self.timings_per_token


LogprobCount: TypeAlias = Annotated[int | None, BeforeValidator(lambda value: MAX_LOGPROBS if value == -1 else value)]
"""A number of likeliest tokens. -1 stands for as many as there may be."""


_MostTokens: TypeAlias = Annotated[int | None, BeforeValidator(lambda value: None if value == -1 else value)]


class PromptBody(ProgressBody):
    """The request fields about a prompt's tokens, which completions and chats have as with vLLM."""

    truncate_prompt_tokens: _MostTokens = Field(
        default=None,
        ge=1,
        description="Use only this many of the prompt's last tokens; null and -1: all. `marks` count those that are "
        "cut off, too.",
    )
    prompt_logprobs: LogprobCount = Field(
        default=None,
        ge=0,
        description="Add `prompt_logprobs`: of each token of the prompt its log-probability and those of this many "
        "likeliest ones, by token id; -1: as many as there may be. A token that is not among those has no `rank`. Not "
        "with `stream`.",
    )
    return_token_ids: bool = Field(default=False, description="Add `prompt_token_ids` and `token_ids` to the choices.")
    return_tokens_as_token_ids: bool = Field(
        default=False, description="Tokens in log-probabilities are named by their ids, as `token_id:5`."
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequestError("prompt_logprobs", self.prompt_logprobs, "null, since stream is true")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.weighted is not None and self.scores_prompt:
            field = "logprobs" if self.prompt_logprobs is None else "prompt_logprobs"
            raise InvalidRequestError(
                field, getattr(self, field), "null, since the prompt is scored and the request has a list as its state"
            )

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's tokens are returned with their log-probabilities."""
        return self.prompt_logprobs is not None

    def scoring(self, engine: EngineLike, limits: Limits, num_tokens: int) -> Mapping[str, Any]:
        """Return the fields of an engine request that ask for log-probabilities, with prompts of `num_tokens` in all.

        Raises InvalidRequestError if they would be more than the limits allow.
        """
        asked = [count for count in (self.alternatives, self.prompt_logprobs) if count is not None]
        most = max(asked, default=None)
        if self.scores_prompt:
            limits.check("max_logprob_entries", "logprobs", num_tokens * (1 + (most or 0)))
        if most == MAX_LOGPROBS:
            most = engine.info.max_logprobs
        return {"logprobs": most, "score_from": 0 if self.scores_prompt else None}

    def own_logprobs(self, tokens: Sequence[TokenInfo]) -> Sequence[TokenInfo]:
        """Return an answer's tokens with as many alternatives as it shall have, where its prompt was to have more."""
        if self.prompt_logprobs is None:
            return tokens
        return [replace(info, top=info.top[: self.alternatives or 0]) for info in tokens]


class PromptLogprob(TypedDict):
    """The log-probability of a token of the vocabulary at a place of a prompt."""

    logprob: float
    rank: int | None  # 1 is the likeliest; null if it is not known
    decoded_token: str


LEAST_LOGPROB = -9999.0  # what OpenAI returns for an impossible token; JSON has no infinity


def prompt_logprobs(
    engine: EngineLike, tokens: Sequence[TokenInfo], most: int
) -> list[dict[str, PromptLogprob] | None]:
    """Return the log-probabilities of a prompt's tokens as vLLM does: of each token and of the `most` likeliest ones.

    They are by token id. A token before which there are no logits has None.
    """
    return [None if info.logprob is None else _of_place(engine, info, most) for info in tokens]


def _of_place(engine: EngineLike, info: TokenInfo, most: int) -> dict[str, PromptLogprob]:
    ranks = {token: rank for rank, (token, _) in enumerate(info.top, 1)}
    found = {info.token: info.logprob or 0.0, **dict(info.top[:most])}
    return {
        str(token): {
            "logprob": max(logprob, LEAST_LOGPROB),
            "rank": ranks.get(token),
            "decoded_token": engine.detokenize([token]).decode(errors="replace"),
        }
        for token, logprob in found.items()
    }


async def note_slot(call: Call, body: GenerationBody, calls: Sequence[GenerateRequest]) -> None:
    """Store a request's prompt under the slot number that its body names, replacing an earlier prompt.

    Does nothing if the body names no slot. A prompt with a `cache_salt` is not stored, since other requests of the same
    API key may not continue from it. Nor is one that starts from another state than the default, since the prompt alone
    does not lead to its state.
    """
    slot, engine = body.id_slot, call.engine
    if slot is None or slot < 0:
        return
    check_slot(engine, "id_slot", slot)
    default = await engine.states.default()
    key, prompts, first = slot_key(call, default, slot), call.app[SLOT_PROMPTS], calls[0]
    root = None if first.initial_state is None else first.initial_state.root
    if root != _root_of(default) or first.mix is not None or body.cache_salt is not None:
        prompts.pop(key)
        return
    packed = await work(call, len(first.prompt), lambda: pack(first.prompt))
    prompts.put(key, packed, len(packed))


def check_slot(engine: EngineLike, field: str, slot: int) -> None:
    if slot >= engine.info.num_slots:
        raise InvalidRequestError(field, slot, f"a slot from 0 to {engine.info.num_slots - 1}")


def slot_key(call: Call, default: NamedState | None, slot: int | str) -> Hashable:
    """Return the key under which the prompt of a slot is stored.

    `slot` is the slot's number, or the digest of a saved state. Prompts start from the default state. If there is
    another one later, they no longer lead to the same state.
    """
    return call.principal.name, call.engine.info.model, _root_of(default), slot


def _root_of(state: NamedState | None) -> str | None:
    return None if state is None else state.frozen.for_request.root
