"""ai00's samplers as its clients write them: an object with a `type` and the numbers of that type."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, TypeAlias

from rnn_engine.checks import check_range
from rnn_engine.errors import InvalidRequestError

PENALTY_DECAY = 0.99654026


@dataclass(frozen=True, slots=True)
class Ai00Nucleus:
    """The likeliest tokens, with ai00's penalties."""

    TYPE: ClassVar = "Nucleus"

    top_p: float = 0.5
    top_k: int = 128
    temperature: float = 1.0
    presence_penalty: float = 0.3
    frequency_penalty: float = 0.3
    penalty_decay: float = PENALTY_DECAY


@dataclass(frozen=True, slots=True)
class Ai00Typical:
    """The tokens whose surprise is nearest to the entropy, with ai00's penalties."""

    TYPE: ClassVar = "Typical"

    tau: float = 0.5
    top_k: int = 128
    temperature: float = 1.0
    presence_penalty: float = 0.3
    frequency_penalty: float = 0.3
    penalty_decay: float = PENALTY_DECAY


@dataclass(frozen=True, slots=True)
class Ai00Mirostat:
    """The second version of mirostat, without penalties."""

    TYPE: ClassVar = "Mirostat"

    tau: float = 3.0
    rate: float = 0.1
    presence_penalty: ClassVar[float] = 0.0
    frequency_penalty: ClassVar[float] = 0.0
    penalty_decay: ClassVar[float] = 1.0


Ai00Sampler: TypeAlias = Ai00Nucleus | Ai00Typical | Ai00Mirostat

_KINDS: tuple[type[Ai00Nucleus] | type[Ai00Typical] | type[Ai00Mirostat], ...] = (
    Ai00Nucleus,
    Ai00Typical,
    Ai00Mirostat,
)
_RANGES = {
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "temperature": (0.0, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "penalty_decay": (0.0, 1.0),
    "rate": (0.0, 10.0),
    "tau": (0.0, 100.0),
}
_OTHER_NAMES = {"learning_rate": "rate", "Rate": "rate"}
_UNUSED = {"type", "penalty"}  # ai00's documents have `penalty`, a half-life that `penalty_decay` says


def parse_ai00(value: object) -> Ai00Sampler:
    """Return the sampler that an object with `type` describes. Raises InvalidRequestError, which names the field."""
    if not isinstance(value, dict):
        raise InvalidRequestError("sampler", value, 'null or an object as {"type": "Nucleus", "top_p": 0.5}')
    kind = next((kind for kind in _KINDS if value.get("type") == kind.TYPE), None)
    if kind is None:
        raise InvalidRequestError("sampler.type", value.get("type"), "Nucleus, Typical or Mirostat")
    known = {field.name: field for field in fields(kind)}
    numbers: dict[str, float] = {}
    for name, number in value.items():
        field = _OTHER_NAMES.get(name, name)
        if name in _UNUSED:
            continue
        if field not in known:
            raise InvalidRequestError(f"sampler.{name[:80]}", number, f"one of the fields {', '.join(known)}")
        wants_whole = isinstance(known[field].default, int)
        if type(number) is not int and (wants_whole or type(number) is not float):
            raise InvalidRequestError(f"sampler.{name}", number, "a whole number" if wants_whole else "a number")
        numbers[field] = number
    return kind(**numbers)  # type: ignore[arg-type]


def check_ai00(sampler: Ai00Sampler) -> None:
    """Raise InvalidRequestError for the first number that is not allowed."""
    for field in fields(sampler):
        check_range(f"sampler.{field.name}", getattr(sampler, field.name), *_RANGES[field.name])
