"""Requests to generate text, which `GenerateRequest.check` checks once, and the events that answer them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from rnn_engine.bounds import MAX_DRAFT
from rnn_engine.chat_template.tools import ToolFormat
from rnn_engine.errors import InvalidRequestError, TokenIds, check_range, check_token_ids, check_whole
from rnn_engine.grammar import Grammar
from rnn_engine.sampling.masks import Thinking, TokenMask
from rnn_engine.sampling.params import MixKind, check_weights
from rnn_engine.sampling.params import SamplingParams as SamplingParams
from rnn_engine.sampling.ranking import SequenceContext
from rnn_engine.telemetry import Timing
from rnn_engine.types import F32, InitialState, LoraPairs, ModelShape, PendingState, State

FinishReason: TypeAlias = Literal["stop", "length"]

MAX_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Client:
    """A sender of requests, whose share grows with its weight. Those in the background take what others leave."""

    name: str = ""  # no other client has the same
    weight: float = 1.0  # above 0
    is_background: bool = False  # nobody waits for its requests

    def rank(self, num_held: int) -> tuple[bool, float]:
        """Return a rank with `num_held` slots or places: the least gets the next, the greatest gives up one."""
        return self.is_background, num_held / self.weight


ANONYMOUS = Client()
"""The client of all requests that have no client of their own."""


class LatestClients:
    """The two clients that came last, by which each knows if others are there."""

    def __init__(self) -> None:
        self._came: dict[Client, float] = {}

    def note(self, client: Client, now: float) -> None:
        """Record that `client` has asked for something at the time `now`."""
        others = [came for came in self._came.items() if came[0] != client]
        self._came = dict([*others[-1:], (client, now)])

    def has_other(self, client: Client, since: float) -> bool:
        """Return True if another client than `client` came after the time `since`."""
        return any(other != client and when > since for other, when in self._came.items())


@dataclass(frozen=True, slots=True)
class MixedState:
    """A further recurrent state for a request that mixes several states' predictions, with its weight in the mix."""

    weight: float
    initial_state: InitialState | None = None  # None = the fill values
    prompt: Sequence[int] | None = None  # to be run before what is generated; None = the request's, with its positions
    turn_positions: Sequence[int] = ()  # in `prompt`; see `GenerateRequest`
    checkpoint_positions: Sequence[int] = ()  # in `prompt`


@dataclass(frozen=True, slots=True)
class StateMix:
    """The states that are mixed for each token, the request's own and `others`; see `rnn_engine.sampling.ranking`."""

    weight: float  # of the request's own state
    others: Sequence[MixedState]
    kind: MixKind = "log"

    @property
    def weights(self) -> tuple[float, ...]:
        return (self.weight, *(other.weight for other in self.others))


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A request to run a prompt and generate tokens after it, from one recurrent state or from a mix of several."""

    prompt: Sequence[int]  # token ids; may be empty if `initial_state` has logits to go on from
    initial_state: InitialState | None = None  # None = the fill values
    mix: StateMix | None = None  # further states, which run the same tokens; each token is drawn from the mix of all
    turn_positions: Sequence[int] = ()  # in the prompt, at which the turns of a chat end; their states may be kept
    checkpoint_positions: Sequence[int] = ()  # in the prompt, whose states the client wants kept
    max_tokens: int = 256  # 0 = only run the prompt
    min_tokens: int = 0  # before this many no stop token is drawn, and no stop string counts
    stop: str | bytes | Sequence[str | bytes] = ()  # matched on bytes; the match itself is not part of the text
    tool_format: ToolFormat | None = None  # no stop string is looked for in calls that are written so
    strips: bool = False  # nor in spaces at the beginning, which are no part of a chat's answer
    stop_tokens: Sequence[int] = (0,)  # ids that end the sequence; 0 is the end of a text, whatever its id
    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: Grammar | None = None  # that the text must match; the engine makes a `token_mask` of it
    grammar_prefix: int = 0  # how many tokens at the prompt's end are the beginning of `grammar`'s text
    left_out: Sequence[str] = ()  # parts of the grammar's JSON schemas that its mask does not enforce
    thinking: Thinking | None = None  # the text begins with thoughts, to which neither grammar nor mask apply
    token_mask: Callable[[], TokenMask] | None = None  # makes the mask of one sequence's tokens; None: all are allowed
    logprobs: int | None = None  # how many alternatives a token; 0 = only the token's own; None = no log-probabilities
    score_from: int | None = None  # score the prompt's tokens from this position on (`PromptScored`); None = none
    penalised_prompt: Sequence[int] = ()  # the tokens of earlier replies, oldest first, which seed the penalties
    cache_scope: str = ""  # only requests with the same scope share cached states of their prompts
    keep_end: bool = False  # return the state at the end (`Finished.end`); of a mix, that of its first state
    keep_row: bool = False  # return the row of logits or features after the last token (`Finished.row`)
    report_progress: bool = False  # give `PromptProgress` before `Started`
    speculate: int | None = None  # most tokens of a draft, as far as the engine drafts; None = the engine's choice
    client: Client = ANONYMOUS
    priority: int = 0  # of a client's requests that wait for a slot, the one with the greatest comes first
    deadline: float | None = None  # by `time.monotonic`: the text ends then, with reason `length`

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, TokenIds):
            object.__setattr__(self, "prompt", TokenIds(self.prompt))

    @property
    def stop_bytes(self) -> tuple[bytes, ...]:
        stops = (self.stop,) if isinstance(self.stop, str | bytes) else self.stop
        return tuple(stop.encode() if isinstance(stop, str) else stop for stop in stops)

    @property
    def members(self) -> tuple[GenerateRequest, ...]:
        """One request for each state that this request mixes, with itself first; only itself if it mixes none."""
        others = () if self.mix is None else self.mix.others
        return (self, *(self._from(other) for other in others))

    @property
    def loras(self) -> Mapping[str, LoraPairs]:
        """The LoRAs of the states from which the request starts, by their digests."""
        states = [self.initial_state, *(() if self.mix is None else (each.initial_state for each in self.mix.others))]
        return {each.lora.digest: each.lora for each in states if each is not None and each.lora is not None}

    def check(self, shape: ModelShape, max_logprobs: int, num_slots: int) -> None:
        """Raise InvalidRequestError for the first field that is not allowed for a model of `shape`."""
        if not shape.has_head:
            self._check_without_head(shape)
        if self.mix is not None:
            self._check_mix(self.mix, shape, max_logprobs, num_slots)
        if len(self.prompt) == 0 and (self.initial_state is None or self.initial_state.logits is None):
            raise InvalidRequestError("prompt", list(self.prompt), "at least one token")
        if self.score_from is not None:
            check_range("score_from", self.score_from, 0, max(len(self.prompt) - 1, 0))
        for name, positions in (("turn", self.turn_positions), ("checkpoint", self.checkpoint_positions)):
            for position in (min(positions), max(positions)) if positions else ():  # a chat may have thousands
                check_range(f"{name} position", position, 0, len(self.prompt))
        if self.speculate is not None:
            check_range("speculate", self.speculate, 0, MAX_DRAFT)
        if self.deadline is not None:
            check_range("deadline", self.deadline, -math.inf, math.inf)
        check_whole("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        check_token_ids("prompt token", self.prompt, shape.vocab_size)
        check_token_ids("stop_token_ids token", self.stop_tokens, shape.vocab_size)
        check_token_ids("penalised_prompt token", self.penalised_prompt, shape.vocab_size)
        check_whole("max_tokens", self.max_tokens, 0, 2**31 - 1)
        check_whole("min_tokens", self.min_tokens, 0, self.max_tokens)
        self._check_stop()
        if self.logprobs is not None:
            check_whole("logprobs", self.logprobs, 0, max_logprobs)
        if self.grammar is not None and self.token_mask is not None:
            raise InvalidRequestError(self.grammar.field, self.grammar, "null, since the request has a token mask")
        most = 0 if self.grammar is None and self.token_mask is None else len(self.prompt)
        check_range("grammar_prefix_tokens", self.grammar_prefix, 0, most)
        self.sampling.check(shape.vocab_size)

    def _check_without_head(self, shape: ModelShape) -> None:
        if self.max_tokens > 0 or self.logprobs is not None or self.score_from is not None or self.mix is not None:
            message = f"the model ({shape.version}) was made for vectors of texts: it writes and scores no text"
            raise InvalidRequestError("model", shape.version, "a language model", message)

    def _check_stop(self) -> None:
        try:
            sound = all(isinstance(stop, bytes) and stop for stop in self.stop_bytes)
        except (TypeError, UnicodeEncodeError):  # no sequence, or a lone surrogate
            sound = False
        if not sound:
            raise InvalidRequestError("stop", self.stop, "a text or bytes that are not empty, or a list of these")

    def sampling_context(self, vocab_size: int, token_bytes: Callable[[int], bytes]) -> SequenceContext:
        """Return what the sampler needs of this request, such as its stop tokens and the tokens of earlier replies."""
        return SequenceContext(
            self.penalised_prompt, self.prompt, self.stop_tokens, self.min_tokens, vocab_size, token_bytes
        )

    def _check_mix(self, mix: StateMix, shape: ModelShape, max_logprobs: int, num_slots: int) -> None:
        check_weights(mix.weights, mix.kind)
        if len(mix.weights) > num_slots:
            raise InvalidRequestError("state", mix.weights, f"at most {num_slots} states, one for each slot")
        if self.score_from is not None:
            raise InvalidRequestError("score_from", self.score_from, "null, since states are mixed")
        for member in self.members[1:]:
            member.check(shape, max_logprobs, num_slots)

    def _from(self, other: MixedState) -> GenerateRequest:
        member = replace(self, mix=None, initial_state=other.initial_state)
        if other.prompt is None:
            return member
        return replace(
            member,
            prompt=other.prompt,
            turn_positions=other.turn_positions,
            checkpoint_positions=other.checkpoint_positions,
        )


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class TokenInfo:
    """A token with its bytes and its natural-log probability under the model, before penalties and bias."""

    token: int
    data: bytes  # the bytes that the token stands for
    logprob: float | None  # None if not asked for, or for the first token of a prompt
    top: tuple[tuple[int, float], ...] = ()  # the most likely (token, logprob), likeliest first


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """An event that reports how many tokens of a prompt have been run; sent if the request set `report_progress`.

    It comes before `Started`. The first one comes when the request has a slot, and counts the tokens that need not run;
    each later one has more.
    """

    prompt_tokens: int
    cached_tokens: int
    processed_tokens: int  # the cached ones are among them


@dataclass(frozen=True, slots=True)
class Started:
    """The event that a request's prompt has been run in its slot. Only `PromptProgress` events come before it."""

    prompt_tokens: int
    cached_tokens: int
    timing: Timing | None = field(default=None, compare=False)  # None if the engine takes no times
    left_out: Sequence[str] = ()  # parts of the grammar's JSON schemas that are not enforced


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The event with the log-probabilities of a prompt's tokens from index `score_from` on, if the request set that.

    It follows `Started`.

    The first token of a sequence that starts from no known logits has no log-probability.
    """

    tokens: tuple[TokenInfo, ...]


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class TextDelta:
    """The next whole characters of the generated text, and the tokens drawn since the last part; text may lag."""

    text: str
    tokens: tuple[TokenInfo, ...]


@dataclass(frozen=True, eq=False)
class EndState:
    """The recurrent state at the end of a request, the tokens that it has taken in, and the logits after them.

    It has taken in the prompt and every generated token, except one that ended the text: a stop token, or the last
    token of a stop string. The arrays belong to the receiver.
    """

    tokens: tuple[int, ...]  # taken in since the request's start
    read: PendingState  # of the state
    logits: F32  # [V] after the last token

    @cached_property
    def state(self) -> State:
        """The state. The thread that owns the runner asks for it first, and gets the errors of `PendingState`."""
        return self.read.result()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request: why its text ended, its number of tokens and, if asked for, the state at its end."""

    reason: FinishReason
    completion_tokens: int  # all that were drawn, a stop token included
    seed: int
    stop: bytes | int | None = None  # the stop string or token that ended it
    end: EndState | None = None  # if `keep_end` was set
    stop_token: TokenInfo | None = None  # the stop token that ended it, if log-probabilities were asked for
    draft_tokens: int = field(default=0, compare=False)  # that were run before it was known whether they are drawn
    accepted_tokens: int = field(default=0, compare=False)  # those of them that were drawn
    row: F32 | None = field(default=None, compare=False)  # [V] logits, or [D] without a head; if `keep_row` was set


Event: TypeAlias = PromptProgress | Started | PromptScored | TextDelta | Finished


def empty_prompt(end_of_text: int, initial_state: InitialState | None) -> tuple[int, ...]:
    """Return the prompt for an empty text: no tokens if `initial_state` has logits to continue from, else one.

    It is `end_of_text`, the token that ends texts, since it also begins them.
    """
    return () if initial_state is not None and initial_state.logits is not None else (end_of_text,)
