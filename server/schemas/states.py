"""The bodies of /v1/states."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import FailFast, Field, PlainValidator, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import MAX_PRIORITY
from rnn_engine.types import F32
from server.limits import Limits
from server.schemas.base import INTEGERS, RefusedError, RequestBody
from server.schemas.prompt import Input, check_prompts
from server.schemas.retention import NewStateBody, RetentionBody
from server.schemas.state_entry import StateEntry
from server.schemas.state_ref import StateRefBody, parse_numbers
from server.schemas.usage import Usage

Priority: TypeAlias = Annotated[
    int,
    Field(
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Of a client's requests that wait for a slot, the greatest comes first, then the earliest.",
    ),
]


class CreateStateRequest(NewStateBody, StateRefBody):
    """A prompt whose state is to have a name."""

    prompt: Input = Field(description="What to run: a text or token ids. Empty: keep `state` as it is.")
    priority: Priority = 0

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_prompts(limits, "prompt", [self.prompt])


class ForkStateRequest(RetentionBody):
    """Copies under several names, all of them or none."""

    names: Annotated[list[str], FailFast()] = Field(min_length=1, max_length=1024, description="Names that are free.")


class TakeStateRequest(RetentionBody):
    """A move to another owner, another name, or both."""

    name: str | None = Field(default=None, description="The name from now on. Null: the one that it has.")


def _parse_embeddings(value: object) -> F32 | None:
    match value:
        case None:
            return None
        case {"data": data, "shape": [int(count), int(width)], **rest} if not rest and count > 0 < width:
            numbers = parse_numbers(data)
            if numbers.size == count * width:
                return numbers.reshape(count, width)
            raise RefusedError(numbers.size, f"{count} times {width} numbers", below="data")
    raise RefusedError(value, 'null or {"data": numbers or base64 of f32, "shape": [tokens, width]}')


_EMBEDDINGS = {
    "type": "object",
    "properties": {"data": {"type": "array", "items": {"type": "number"}}, "shape": INTEGERS},
}
GivenEmbeddings: TypeAlias = Annotated[
    F32, PlainValidator(_parse_embeddings), WithJsonSchema({"anyOf": [_EMBEDDINGS, {"type": "null"}]})
]


class AdvanceStateRequest(RequestBody):
    """Tokens to go on by, and what to read out."""

    input: Input = Field(default="", description="A text or token ids. None leave the state as it is.")
    logprobs: int | None = Field(
        default=None, ge=0, description="Log-probabilities of the tokens, and of this many others in each place."
    )
    top_k: int = Field(default=0, ge=0, description="Tell this many of the tokens that are likeliest to come next.")
    input_embeddings: GivenEmbeddings | None = Field(
        default=None,
        description="What the first layer takes in, before its layer norm, in place of the embeddings of tokens: "
        '`{"data": ..., "shape": [tokens, width]}`, where `data` is a flat list of numbers or base64 of f32. Not with '
        "`input` and `logprobs`; `output_positions` then are of the last place alone.",
    )
    output_positions: Annotated[list[int], FailFast()] = Field(
        default=[],
        max_length=4096,
        description="Places in the input, from the end where negative, after which `outputs` tells the `top_k` "
        "likeliest tokens, too; at most as many as `max_logprobs` of the model before the last place.",
    )
    priority: Priority = 0
    mask: Any = Field(
        default=None, description="Refused with 501: a state has no pages or places that a mask could hide."
    )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_prompts(limits, "input", [self.input])
        given = self.input_embeddings
        if given is not None:
            limits.check("max_prompt_tokens", "input_embeddings", given.shape[0])
            if self.input or self.logprobs is not None:
                raise InvalidRequestError("input_embeddings", list(given.shape), "null beside input and logprobs")


class LeaseEntry(TypedDict):
    """What an owner has until it has not been used for `ttl` seconds."""

    object: Literal["lease"]
    owner: str
    ttl: float
    expires_in: float
    states: list[str]
    bytes: int


class LeaseEntries(TypedDict):
    """Leases, the newest first: these give way where an older one needs room."""

    object: Literal["list"]
    data: list[LeaseEntry]


class LeaseEnded(TypedDict):
    """`states` are gone with it."""

    object: Literal["lease.ended"]
    owner: str
    states: list[str]


class StateEntries(TypedDict):
    """`bytes` of `capacity` are taken; copies share theirs. `default` is the name of the default state."""

    object: Literal["list"]
    data: list[StateEntry]
    default: str | None
    bytes: int
    capacity: int


class StateRemoved(TypedDict):
    object: Literal["state.deleted"]
    id: str
    name: str
    deleted: Literal[True]


class CreatedState(TypedDict):
    object: Literal["state.created"]
    state: StateEntry
    usage: Usage


class StateToken(TypedDict):
    """`logprob` is null for the first token of a state that does not know what comes next."""

    id: int
    token: str
    logprob: float | None


class ScoredStateToken(StateToken):
    top: list[StateToken]


class StateOutput(TypedDict):
    """`next` has the likeliest tokens after the one at `position`."""

    position: int
    next: list[StateToken]


class AdvancedState(TypedDict):
    """`scored` is null unless `logprobs` was asked for; `next` has `top_k` tokens, likeliest first; `outputs` has an
    entry for each of `output_positions`."""

    object: Literal["state.advanced"]
    state: StateEntry
    scored: list[ScoredStateToken] | None
    next: list[StateToken]
    outputs: list[StateOutput]
    usage: Usage
