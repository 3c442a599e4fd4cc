"""Numbers as options: of bytes, as 4096, 256M or 2G, and finite ones in a range."""

from __future__ import annotations

import math
import re

import click

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class FiniteRange(click.FloatRange):
    """A range without infinity and NaN; click's lets NaN through."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not allowed; expected a finite number", param, ctx)
        return number


def parse_size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Parse a number of bytes, with K, M, G or T for powers of 1024. A click callback."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text, re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{text!r} is not allowed; expected a whole number of bytes as 0, 4096, 256M or 2G")
    return int(match[1]) * _UNITS[match[2].upper()]


def size_in_words(num_bytes: int) -> str:
    unit = max((name for name in _UNITS if num_bytes % _UNITS[name] == 0), key=_UNITS.__getitem__)
    return f"{num_bytes // _UNITS[unit]}{unit}"
