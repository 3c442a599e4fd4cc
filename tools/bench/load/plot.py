"""Draw the figures of several loads as one SVG, for light and dark colour schemes. Values of zero are left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment

from tools.bench.load.figures import Figures

_WIDTH, _HEIGHT = 230, 150  # of a panel
_LEFT, _TOP = 60, 90  # of the first one
_STEP_X, _STEP_Y = 310, 225  # from one to the next


@dataclass(frozen=True, slots=True)
class _Curve:
    name: str
    cache: bool
    high: bool  # the 95th percentile, not the median

    @property
    def style(self) -> str:
        return f"{'on' if self.cache else 'off'}{' high' if self.high else ''}"


_CURVES: Final = (
    _Curve("with the cache", True, False),
    _Curve("95 %", True, True),
    _Curve("without the cache", False, False),
    _Curve("95 %", False, True),
)
_LOADS: Final = {"closed": "clients", "open": "conversations that begin in a second"}
_PANELS: Final = {  # title -> the field of its medians, or of all; that of its 95th percentiles
    "to the first token (ms)": ("first_median", "first_95"),
    "between tokens (ms)": ("between_median", None),
    "tokens a second": ("tokens_per_second", None),
}


@dataclass(frozen=True, slots=True)
class _Scale:
    """A logarithmic axis of a plot, `length` units long, that converts values to coordinates."""

    least: float
    greatest: float
    length: float

    def place(self, value: float) -> float:
        share = math.log(value / self.least) / math.log(self.greatest / self.least)
        return round(self.length * share, 1)


def draw(lines: Sequence[Figures], title: str) -> str:
    """Return an SVG that plots the figures of loads: a row of panels for closed loads, and one for open loads."""
    loads = [load for load in _LOADS if any(line.load == load for line in lines)]
    panels = [
        {"left": _LEFT + column * _STEP_X, "top": _TOP + row * _STEP_Y}
        | _panel([line for line in lines if line.load == load], name, *fields)
        | {"axis": _LOADS[load]}
        for row, load in enumerate(loads)
        for column, (name, fields) in enumerate(_PANELS.items())
    ]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_suffix(".svg").read_text("utf-8"))
    width, height = _LEFT + len(_PANELS) * _STEP_X - 10, _TOP + len(loads) * _STEP_Y - 25
    return template.render(title=title, legend=_CURVES, panels=panels, width=width, height=height)


def _panel(lines: Sequence[Figures], title: str, field: str, high: str | None) -> dict[str, object]:
    """Return the values that the SVG template needs for one panel: ticks and curves, in the panel's coordinates."""
    values = [value for line in lines for name in (field, high) if name is not None and (value := getattr(line, name))]
    sizes = sorted({line.size for line in lines})
    least, greatest = _decades(values)
    down = _Scale(greatest, least, _HEIGHT)
    across = _Scale(sizes[0], max(sizes[-1], 2 * sizes[0]), _WIDTH)
    curves = []
    for curve in _CURVES:
        if (name := high if curve.high else field) is not None:
            chosen = [line for line in lines if line.cache == curve.cache and getattr(line, name)]
            points = [(across.place(line.size), down.place(getattr(line, name))) for line in chosen]
            curves.append({"style": curve.style, "points": points})
    return {
        "title": title,
        "width": _WIDTH,
        "height": _HEIGHT,
        "rows": [{"place": down.place(tick), "label": f"{tick:,g}"} for tick in _ticks(least, greatest)],
        "columns": [{"place": across.place(size), "label": f"{size:g}"} for size in sizes],
        "curves": curves,
    }


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of an axis for `values`, each 1, 2 or 5 times a power of ten: one below all values, one above.

    Without values, return 1 and 10.
    """
    return (_round(min(values), up=False), _round(max(values), up=True)) if values else (1.0, 10.0)


def _round(value: float, *, up: bool) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    return next(step for step in steps if step > value) if up else max(step for step in steps if step <= value)


def _ticks(least: float, greatest: float) -> list[float]:
    """Return the ticks from `least` to `greatest`: powers of ten, with twice and five times them on a short axis."""
    factors = (1, 2, 5) if greatest / least <= 200 else (1,)
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(greatest)) + 1)
    ticks = {least, greatest} | {factor * 10.0**power for power in powers for factor in factors}
    return sorted(tick for tick in ticks if least <= tick <= greatest)
