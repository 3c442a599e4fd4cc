"""The fields that completions and chats share: how tokens are drawn, where a text ends, how the answer comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema

from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import MAX_PRIORITY, SamplingParams
from server.schemas.base import RefusedError, RequestBody
from server.schemas.keeping import SaveAs
from server.schemas.state_ref import ModelBody

_SAMPLING = SamplingParams()
_MAX_STOPS = 64
_SEEDS = 2**64


def _parse_stop(value: object) -> tuple[str, ...]:
    """One string or a list of them; null for none."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise RefusedError(value, f"null, a string, or up to {_MAX_STOPS} strings, none of them empty")
    return tuple(stops)


def _parse_bias(value: object) -> dict[int, float]:
    if not isinstance(value, dict) or not all(type(bias) in (int, float) for bias in value.values()):
        raise RefusedError(value, 'an object of token ids and numbers, as {"65530": -1.5}')
    if not all(token.isascii() and token.isdigit() for token in value):
        raise RefusedError(value, "token ids as keys, in decimal digits")
    return {int(token): float(bias) for token, bias in value.items()}


def _parse_seed(value: object) -> int | None:
    if value is None or (type(value) is int and value == -1):
        return None
    if type(value) is int and 0 <= value < _SEEDS:
        return value
    raise RefusedError(value, f"a whole number from 0 to {_SEEDS - 1}, or null or -1 for a random one")


Stop: TypeAlias = Annotated[
    tuple[str, ...],
    PlainValidator(_parse_stop),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
]
Bias: TypeAlias = Annotated[
    Mapping[int, float],
    PlainValidator(_parse_bias),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
]
Seed: TypeAlias = Annotated[
    int | None, PlainValidator(_parse_seed), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "null"}]})
]


class StreamOptions(RequestBody):
    ignored: ClassVar = frozenset({"include_obfuscation"})

    include_usage: bool = Field(default=False, description="Send one more chunk, without choices, that holds `usage`.")


class GenerationBody(ModelBody):
    """What a client may set on any generation."""

    ignored: ClassVar = frozenset(
        {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"}
    )
    aliases: ClassVar = {"bias": "logit_bias"}

    max_tokens: int = Field(default=256, description="The most tokens to generate. 0 runs the prompt alone.")
    temperature: float = Field(default=_SAMPLING.temperature, description="0 always takes the likeliest token.")
    top_p: float = Field(
        default=_SAMPLING.top_p,
        description="Keep the likeliest tokens while the mass before one is at most this; 1 keeps all.",
    )
    top_k: int = Field(default=_SAMPLING.top_k, description="Keep this many of the likeliest tokens; 0 keeps all.")
    presence_penalty: float = Field(
        default=_SAMPLING.presence_penalty, description="Taken off a token that has occurred."
    )
    frequency_penalty: float = Field(default=_SAMPLING.frequency_penalty, description="Taken off for each occurrence.")
    penalty_decay: float = Field(
        default=_SAMPLING.penalty_decay, description="Every generated token multiplies all penalties by this."
    )
    logit_bias: Bias = Field(default={}, description="Token id -> a number that is added to its logit.")
    seed: Seed = Field(
        default=None, description="The same seed and prompt give the same text. Copies have seeds derived from it."
    )
    stop: Stop = Field(default=(), description="Texts before which the answer ends.")
    n: int = Field(default=1, ge=1, le=128, description="How many answers to one prompt.")
    stream: bool = Field(default=False, description="Send the answer as server-sent events while it is made.")
    stream_options: StreamOptions | None = Field(default=None, description="Only with `stream`.")
    priority: int = Field(
        default=0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="Of the requests that wait for a slot, the greatest comes first, then the earliest; one of every "
        "8 slots goes to the earliest anyway.",
    )
    save_as: SaveAs | None = Field(
        default=None,
        description="Keep the state at the end of the one answer under this name, told in `saved_state`: a name, or an "
        "object. The name that `state` has then stands for the new state.",
    )

    def model_post_init(self, _context: Any) -> None:  # noqa: ANN401
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options", self.stream_options.model_dump(), "null unless stream is true")

    @property
    def copies(self) -> int:
        """How many answers to one prompt are made, of which the best `n` are returned."""
        return self.n

    def sampling(self, copy: int) -> SamplingParams:
        """How copy number `copy` of an answer draws its tokens."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            penalty_decay=self.penalty_decay,
            bias=self.logit_bias,
            seed=None if self.seed is None else _derive_seed(self.seed, copy),
        )

    @property
    def stop_bytes(self) -> tuple[bytes, ...]:
        return tuple(stop.encode() for stop in self.stop)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


def _derive_seed(seed: int, copy: int) -> int:
    """Copy 0 has the seed itself; an odd step keeps the others apart, and far from neighbouring seeds."""
    return (seed + copy * 0x9E3779B97F4A7C15) % _SEEDS
