"""Names and bounds of settings that options, requests and the engine share. Imports neither numpy nor a device."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from rnn_engine.errors import InvalidRequestError, check_finite

T = TypeVar("T")

MAX_DRAFT: Final = 64
"""The most tokens of a draft."""

DEFAULT_DRAFT: Final = 0
"""The most tokens of a draft, unless the user chose a number; 0 makes no drafts."""

MAX_QUEUED: Final = 1024
"""The most requests that wait for a slot, unless the user chose a number."""

TUNE_SECONDS: Final = 10.0
"""How long the search for the fastest kernels takes at most, unless the user chose a number."""

FORMAT_NAMES: Final = (
    *("f16", "bf16", "f32", "int8", "q8_0", "int4", "q4_1", "q4_0", "nf4", "sf4"),
    *("q4_k", "q5_k", "q6_k"),
)
"""The names of the weight formats, in the order of `WEIGHT_FORMATS`, which has the formats themselves."""

STORED: Final = "stored"
"""The weights' choice that keeps each matrix in the float type or the blocks of the file."""

AUTO: Final = "auto"
"""The weights' choice that takes the best format that fits into the device's memory."""

AUTO_FORMATS: Final = ("f16", "int8", "int4")
"""The formats that `AUTO` tries, best first; `STORED` takes the place of f16 for a quantised file."""


# Settings that a user gives on the command line or in a config file: described once, at their fields.

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Parse a number of bytes such as 4096 or 256M; K, M, G and T are powers of 1024. Raises InvalidRequestError."""
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text, re.IGNORECASE)
    if match is None:
        raise InvalidRequestError("size", text, "a whole number of bytes, such as 0, 4096, 256M or 2G")
    return int(match[1]) * _UNITS[match[2].upper()]


def write_size(num_bytes: int) -> str:
    """Return a number of bytes as `parse_size` reads it, with the largest unit that divides it."""
    unit = max((name for name in _UNITS if num_bytes % _UNITS[name] == 0), key=_UNITS.__getitem__)
    return f"{num_bytes // _UNITS[unit]}{unit}"


class Settings:
    """Base of dataclasses with settings, which refuse numbers that are negative or not finite when they are made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_finite(each.name, value)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of values: their type and range, and how they are written as text."""

    value_type: type[bool | int | float | str | Path] = str
    metavar: str | None = None  # what stands for a value in the help; None: as the type has it. FILE is a file's path
    low: float | None = None
    high: float | None = None
    is_open: bool = False  # the values are greater than `low`
    choices: Sequence[str] = ()  # the only values; empty: any
    exists: bool = False  # of a path: it must be there
    unit: str = ""  # of a number, for error messages
    parse: Callable[[str], object] | None = None  # raises InvalidRequestError
    write: Callable[[Any], object] = lambda value: value


TEXT: Final = Kind()
FLAG: Final = Kind(bool)
SIZE: Final = Kind(int, "SIZE", unit="bytes", parse=parse_size, write=write_size)
SECONDS: Final = Kind(float, "SECONDS", low=0)
POSITIVE_SECONDS: Final = Kind(float, "SECONDS", low=0, is_open=True)
FILE: Final = Kind(Path, "FILE")
FOLDER: Final = Kind(Path, "FOLDER")
EXISTING_FOLDER: Final = Kind(Path, "FOLDER", exists=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """How a user gives the value of a field of settings: by an option, or in a config file under the option's name."""

    help: str
    kind: Kind
    names: tuple[str, ...]  # of the option; empty: the field's name with dashes
    text: str | None  # the option's default, if it differs from the field's
    env: str | None  # a variable of the environment that may have the value


@dataclass(frozen=True, slots=True)
class Part:
    """Settings within other settings.

    If `needed` is not None, they are there only if their first field is given, which is then called so in the error for
    others that are given without it.
    """

    settings: type
    needed: str | None


SETTING: Final = "setting"
"""The key under which a dataclass field's metadata has its `Setting` or `Part`."""


def described(meaning: str, kind: Kind, name: str, env: str | None = None) -> Mapping[str, object]:
    """Return the metadata of a field that has a `Setting` and no default."""
    return {SETTING: Setting(meaning, kind, (name,), None, env)}


@dataclass(frozen=True, slots=True)
class Draft:
    """A field of a dataclass with a default, which lacks only the help of its option."""

    default: object
    setting: Setting

    def help(self, words: str) -> Any:  # noqa: ANN401 - what a field's default is to a type checker
        """Return the field."""
        return field(default=self.default, metadata={SETTING: replace(self.setting, help=words)})


def setting(
    default: object, kind: Kind | None = None, *names: str, text: str | None = None, env: str | None = None
) -> Draft:
    """Begin a field of a dataclass that has a `Setting`; its kind may follow from the default."""
    kind = kind or Kind(str if default is None else type(default))  # type: ignore[arg-type]
    return Draft(default, Setting("", kind, names, text, env))


def part(settings: Callable[[], T]) -> T:
    """Return a field of a dataclass with further settings."""
    return field(default_factory=settings, metadata={SETTING: Part(cast(type, settings), None)})


def optional_part(settings: type[T], needed: str) -> T | None:
    """Return a field of a dataclass with settings that are only there if their first field is given; see `Part`."""
    return field(default=None, metadata={SETTING: Part(settings, needed)})
