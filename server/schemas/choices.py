"""The bodies of /v1/choices and of ai00's /api/oai/chooses."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NotRequired, TypeAlias

from pydantic import FailFast, Field, PlainValidator, WithJsonSchema
from typing_extensions import TypedDict

from server.limits import Limits
from server.schemas.base import INTEGERS, STRING, RefusedError, is_integers
from server.schemas.prompt import STRINGS, Prompt, check_prompts
from server.schemas.state_ref import ModelBody
from server.schemas.usage import Usage

Figure: TypeAlias = Literal["total", "mean", "per_byte"]


def _parse_context(value: object) -> Prompt:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "".join(value)
    if is_integers(value):
        return tuple(value)
    raise RefusedError(value, "null, a string, a list of strings, which are joined, or a list of token ids")


def _parse_choice(value: object) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if is_integers(value) and value:
        return tuple(value)
    raise RefusedError(value, "a string or a list of token ids, not empty")


_CONTEXT_SCHEMA = {"anyOf": [STRING, STRINGS, INTEGERS, {"type": "null"}]}
_Choice: TypeAlias = Annotated[Prompt, PlainValidator(_parse_choice), WithJsonSchema({"anyOf": [STRING, INTEGERS]})]


class ChoosesRequest(ModelBody):
    """Continuations of a text that are to be ranked by how likely they are."""

    ignored: ClassVar = frozenset({"metadata", "user"})

    input: Annotated[Prompt, PlainValidator(_parse_context), WithJsonSchema(_CONTEXT_SCHEMA)] = Field(
        default="", description="The text that the choices follow. Empty: token 0, or the end of the text in `state`."
    )
    choices: Annotated[list[_Choice], FailFast()] = Field(
        min_length=1,
        description="The continuations. Each is made into tokens by itself; begin it with the space before its word.",
    )
    calibrate: bool = Field(
        default=False, description="Take off every figure what the choice has after `state` and token 0 alone."
    )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_choices", "choices", len(self.choices))
        check_prompts(limits, "input", [self.input])
        check_prompts(limits, "choices", self.choices)


class ChoicesRequest(ChoosesRequest):
    """Continuations of a text that are to be scored."""

    probability_of: Figure = Field(
        default="total", description="The figure of which `probability` is the softmax over the choices."
    )
    logprobs: bool = Field(default=False, description="Add the tokens of the choices with their log-probabilities.")


class RankedChoice(TypedDict):
    """`index` is the choice's place in the request, `rank` its place in the answer, both from 0."""

    object: Literal["choice"]
    index: int
    rank: int
    choice: str


class ChoosesEntry(RankedChoice):
    """`perplexity` is what ai00 calls so: -ln p a token, without the exponential that is usual elsewhere and that
    `/v1/choices` takes."""

    perplexity: float


class Chooses(TypedDict):
    """One entry a choice, the least perplexity first."""

    object: Literal["list"]
    model: str
    data: list[ChoosesEntry]


class ChoiceToken(TypedDict):
    """`logprob` is not calibrated. Where the choices are, `alone` is the token's after token 0 alone."""

    id: int
    token: str
    logprob: float
    alone: NotRequired[float]


class ChoiceEntry(RankedChoice):
    """Log-probabilities of the choice: in all, a token, and a byte (null where its tokens stand for no text).
    `perplexity` is exp(-`mean`), null where that is too large for a number. `tokens` is null unless `logprobs` is
    asked for."""

    perplexity: float | None
    total: float
    mean: float
    per_byte: float | None
    probability: float
    tokens: list[ChoiceToken] | None


class Choices(TypedDict):
    """One entry a choice, the least perplexity first. The usage counts the context once."""

    object: Literal["list"]
    model: str
    data: list[ChoiceEntry]
    usage: Usage
