"""The figures of loads, as rows of a table and as one SVG for light and dark colour schemes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from jinja2 import Environment

from tools.bench.turns import show

FIRST, FIRST_95, BETWEEN, SPEED = "first token ms", "first token 95 %", "between tokens ms", "tokens/s"
_PANELS: Final = ((FIRST, FIRST_95), (BETWEEN,), (SPEED,))  # the figures of each; the second one is drawn dashed
_LOADS: Final = {"closed": "clients", "open": "conversations/s"}
_WIDTH, _HEIGHT = 230, 150  # of a panel


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one load by their names."""

    server: str
    load: str  # "closed" or "open"
    size: float  # clients of a closed load, conversations a second of an open one
    figures: Mapping[str, float]

    def __str__(self) -> str:
        """Return a row of a Markdown table."""
        cells = (f"{self.size:g} {_LOADS[self.load]}", self.server, *map(show, self.figures.values()))
        return f"| {' | '.join(cells)} |"


def draw(lines: Sequence[Line], title: str) -> str:
    """Return an SVG with a row of panels for closed loads, and one for open loads. Values of zero are left out."""
    loads = [load for load in _LOADS if any(line.load == load for line in lines)]
    servers = list(dict.fromkeys(line.server for line in lines))
    panels = [_panel([line for line in lines if line.load == load], names) for load in loads for names in _PANELS]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_suffix(".svg").read_text("utf-8"))
    return template.render(title=title, servers=servers, panels=panels, width=_WIDTH, height=_HEIGHT)


def _panel(lines: Sequence[Line], names: Sequence[str]) -> dict[str, object]:
    """Return what the SVG template needs for one panel: points and ticks, and functions to their coordinates."""
    ticks = _ticks([value for line in lines for name in names if (value := line.figures[name])])
    sizes = sorted({line.size for line in lines})
    curves: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        for name in names:
            if value := line.figures[name]:
                curves[line.server, name].append((line.size, value))
    return {
        "names": names,
        "axis": _LOADS[lines[0].load],
        "curves": curves,
        "sizes": sizes,
        "ticks": ticks,
        "across": partial(_place, sizes[0], max(sizes[-1], 2 * sizes[0]), _WIDTH),
        "down": partial(_place, ticks[-1], ticks[0], _HEIGHT),
    }


def _place(first: float, last: float, length: float, value: float) -> float:
    """Return the coordinate of `value` on a logarithmic axis of this length, from `first` to `last`."""
    return round(length * math.log(value / first) / math.log(last / first), 1)


def _ticks(values: Sequence[float]) -> list[float]:
    """Return the ticks of an axis for `values`: 1, 2 and 5 times powers of ten, from below all values to above them.

    A long axis has ticks only at powers of ten and at its ends. Without values it goes from 1 to 10.
    """
    least, greatest = (min(values), max(values)) if values else (1.0, 9.0)
    powers = range(math.floor(math.log10(least)), math.floor(math.log10(greatest)) + 2)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    first = max(tick for tick in ticks if tick <= least)
    last = min(tick for tick in ticks if tick > greatest)
    shown = ticks if last / first <= 200 else ticks[::3]
    return [first, *(tick for tick in shown if first < tick < last), last]
