"""How a client wants its tokens drawn, declared once for Python, HTTP and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeAlias, get_args, get_type_hints

from rnn_engine.checks import check_range
from rnn_engine.sampling.adjustments import Adjustments
from rnn_engine.sampling.greedy import Greedy
from rnn_engine.sampling.nucleus import Nucleus
from rnn_engine.sampling.protocol import Sampler

TokenBias: TypeAlias = Mapping[int, float]
"""Token id -> what is added to its logit."""

MAX_SEED = 2**64 - 1

Seed: TypeAlias = int | None
"""None is a random one, which is told in `Finished.seed`."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The range of a field's value, both ends included, and a sentence for clients. Of a mapping: of each value."""

    low: float
    high: float
    help: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from a row of logits.

    Order: logits - penalties + bias, softmax, keep the `top_k` most likely, keep tokens while the mass before
    a token is <= `top_p`, raise to 1 / temperature, renormalise, draw. Temperature 0 is greedy. Every generated
    token multiplies all penalties by `penalty_decay`, then adds `frequency_penalty` to its own and, at its first
    sight, `presence_penalty`.

    A field that is added here is a field of the HTTP bodies and an option of the commands, under the same name.
    """

    temperature: Annotated[float, Allowed(0.0, 100.0, "0 always takes the likeliest token.")] = 1.0
    top_p: Annotated[
        float, Allowed(0.0, 1.0, "Keep the likeliest tokens while the mass before one is at most this; 1 keeps all.")
    ] = 0.5
    top_k: Annotated[int, Allowed(0, 2**31 - 1, "Keep this many of the likeliest tokens; 0 keeps all.")] = 128
    presence_penalty: Annotated[float, Allowed(-100.0, 100.0, "Taken off a token that has occurred.")] = 0.0
    frequency_penalty: Annotated[float, Allowed(-100.0, 100.0, "Taken off for each occurrence.")] = 0.0
    penalty_decay: Annotated[float, Allowed(0.0, 1.0, "Every generated token multiplies all penalties by this.")] = (
        0.99654026
    )
    logit_bias: Annotated[TokenBias, Allowed(-1000.0, 1000.0, "Token id -> a number that is added to its logit.")] = (
        field(default_factory=dict)
    )
    seed: Annotated[
        Seed, Allowed(0, MAX_SEED, "The same seed and prompt give the same text. Random where none is given.")
    ] = None

    def check(self, vocab_size: int) -> None:
        """Raise InvalidRequestError for the first field whose value is not allowed."""
        for parameter in PARAMETERS:
            parameter.check(getattr(self, parameter.name), vocab_size)

    def make_sampler(self) -> Sampler:
        """Return what chooses the tokens of one sequence."""
        if self.temperature == 0.0:
            return Greedy()
        return Nucleus(self.top_p, self.top_k, self.temperature)

    def make_adjustments(self, earlier: Sequence[int]) -> Adjustments:
        """Return bias and penalties of one sequence, for which `earlier` tokens, oldest first, count as seen."""
        return Adjustments(self.logit_bias, self.presence_penalty, self.frequency_penalty, self.penalty_decay, earlier)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of `SamplingParams`."""

    name: str
    type: Any  # float, int, TokenBias or Seed
    default: Any
    allowed: Allowed

    def check(self, value: Any, vocab_size: int) -> None:  # noqa: ANN401
        """Raise InvalidRequestError where `value` is not allowed."""
        if isinstance(value, Mapping):
            for token, number in value.items():
                check_range(f"{self.name} token id", token, 0, vocab_size - 1)
                check_range(f"{self.name} value", number, self.allowed.low, self.allowed.high)
        elif value is not None or self.type != Seed:
            check_range(self.name, value, self.allowed.low, self.allowed.high)


def _list_parameters() -> tuple[Parameter, ...]:
    hints = get_type_hints(SamplingParams, include_extras=True)
    defaults = SamplingParams()
    declared = [(one.name, get_args(hints[one.name])) for one in fields(SamplingParams)]
    return tuple(Parameter(name, kind, getattr(defaults, name), allowed) for name, (kind, allowed) in declared)


PARAMETERS = _list_parameters()
"""The fields of `SamplingParams`, in their order."""
