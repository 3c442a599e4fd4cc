"""The bodies of /v1/states."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from server.limits import Limits
from server.schemas.base import RequestBody
from server.schemas.prompt import Input, check_prompts
from server.schemas.retention import NewStateBody, RetentionBody
from server.schemas.state_entry import StateEntry
from server.schemas.state_ref import StateRefBody
from server.schemas.usage import Usage


class CreateStateRequest(NewStateBody, StateRefBody):
    """A prompt whose state is to have a name."""

    prompt: Input = Field(description="What to run: a text or token ids.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_prompts(limits, "prompt", [self.prompt])


class ForkStateRequest(RetentionBody):
    """Copies under several names, all of them or none."""

    names: Annotated[list[str], FailFast()] = Field(min_length=1, max_length=1024, description="Names that are free.")


class TakeStateRequest(RetentionBody):
    """A move to another owner, another name, or both."""

    name: str | None = Field(default=None, description="The name from now on. Null: the one that it has.")


class AdvanceStateRequest(RequestBody):
    """Tokens to go on by, and what to read out."""

    input: Input = Field(default="", description="A text or token ids. None leave the state as it is.")
    logprobs: int | None = Field(
        default=None, ge=0, description="Log-probabilities of the tokens, and of this many others in each place."
    )
    top_k: int = Field(default=0, ge=0, description="Tell this many of the tokens that are likeliest to come next.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_prompts(limits, "input", [self.input])


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


class AdvancedState(TypedDict):
    """`scored` is null unless `logprobs` was asked for; `next` has `top_k` tokens, likeliest first."""

    object: Literal["state.advanced"]
    state: StateEntry
    scored: list[ScoredStateToken] | None
    next: list[StateToken]
    usage: Usage
