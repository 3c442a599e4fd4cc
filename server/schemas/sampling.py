"""The fields that say how tokens are drawn, made from `SamplingParams`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, WithJsonSchema, create_model

from rnn_engine.sampling.params import MAX_SEED, PARAMETERS, SamplingParams, Seed, TokenBias
from server.limits import Limits
from server.schemas.base import RefusedError
from server.schemas.state_ref import ModelBody


def _parse_bias(value: object) -> dict[int, float]:
    if not isinstance(value, dict) or not all(type(bias) in (int, float) for bias in value.values()):
        raise RefusedError(value, 'an object of token ids and numbers, as {"65530": -1.5}')
    if not all(token.isascii() and token.isdigit() for token in value):
        raise RefusedError(value, "token ids as keys, in decimal digits")
    try:
        return {int(token): float(bias) for token, bias in value.items()}
    except (ValueError, OverflowError):  # thousands of digits
        raise RefusedError(value, "token ids and numbers of an ordinary size") from None


def _parse_seed(value: object) -> int | None:
    if value is None or (type(value) is int and value == -1):
        return None
    if type(value) is int and 0 <= value <= MAX_SEED:
        return value
    raise RefusedError(value, f"a whole number from 0 to {MAX_SEED}, or null or -1 for a random one")


# What is not told by the type alone: how it comes in JSON.
_JSON_TYPES: Mapping[Any, Any] = MappingProxyType(
    {
        TokenBias: Annotated[
            TokenBias,
            PlainValidator(_parse_bias),
            WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
        ],
        Seed: Annotated[
            Seed, PlainValidator(_parse_seed), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "null"}]})
        ],
    }
)

if TYPE_CHECKING:
    _SamplingFields = ModelBody
else:
    _SamplingFields = create_model(
        "_SamplingFields",
        __base__=ModelBody,
        **{
            parameter.name: (
                _JSON_TYPES.get(parameter.type, parameter.type),
                Field(default=parameter.default, description=parameter.allowed.help),
            )
            for parameter in PARAMETERS
        },
    )


class SamplingBody(_SamplingFields):
    """A body with a field for each of `SamplingParams`; the ranges are checked by `SamplingParams.check`."""

    aliases: ClassVar = {"bias": "logit_bias"}

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_bias_entries", "logit_bias", len(self.sampling(0).logit_bias))

    def sampling(self, copy: int) -> SamplingParams:
        """Return how copy number `copy` of an answer draws its tokens: each copy has a seed of its own."""
        params = SamplingParams(**{parameter.name: getattr(self, parameter.name) for parameter in PARAMETERS})
        return params if params.seed is None else replace(params, seed=_derive_seed(params.seed, copy))


def _derive_seed(seed: int, copy: int) -> int:
    """Copy 0 has the seed itself; an odd step keeps the others apart, and far from neighbouring seeds."""
    return (seed + copy * 0x9E3779B97F4A7C15) % (MAX_SEED + 1)
