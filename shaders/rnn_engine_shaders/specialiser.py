"""Makes the source text of a shader module from a WGSL file, given its includes and constants.

Each line of the text is traced to its file, for error messages.

A kernel varies in two ways only. A line `#include NAME` is replaced by the file that the caller gives for NAME,
or by NAME.wgsl itself. Constants become generated `const` lines at the top, since WGSL's `override` can't size
an array. Binding numbers are written only in the WGSL. All other code uses the names of the variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeAlias

Constant: TypeAlias = int | float | bool

Include: TypeAlias = str | Path
"""A file to include: the name of a file of this package, without its suffix, or the path of another file."""

_INCLUDE = re.compile(r"^#include\s+(\w+)\s*$")
_WORD = re.compile(r"\w+")
_BINDING = re.compile(r"@group\(0\)\s*@binding\((\d+)\)\s*var<\s*(storage)\s*,\s*(read|read_write)\s*>\s*(\w+)\s*:")


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding of one storage buffer of a shader, in group 0: its number, and if it is read-only."""

    number: int
    read_only: bool


@dataclass(frozen=True, slots=True)
class ShaderSource:
    """A shader module's text, its bindings by variable, and each line's file and line, for compilers' messages."""

    name: str
    text: str
    bindings: Mapping[str, Binding]
    lines: tuple[tuple[str, int], ...]

    def origin(self, line: int) -> str:
        """Return the place that a line of the shader's text comes from, as `file:line`. Lines are counted from 1."""
        file, number = self.lines[line - 1]
        return f"{file}:{number}"


def specialise(
    name: str, constants: Mapping[str, Constant], includes: Mapping[str, Include] | None = None
) -> ShaderSource:
    """Return the source of the shader `name`.wgsl with constants added at its top and each `#include X` replaced.

    `includes` maps X to the file to include; without an entry it is X.wgsl.

    Raises KeyError for a constant or an include that the text never mentions, since it is probably misspelt.
    """
    chosen = dict(includes or {})
    header = [f"const {key} = {_literal(value)};" for key, value in constants.items()]
    text: list[str] = []
    origins: list[tuple[str, int]] = []
    used: set[str] = set()
    _append(name, chosen, used, text, origins)
    body = "\n".join(text)
    if unknown := set(chosen) - used:
        raise KeyError(f"{name}.wgsl includes none of {sorted(unknown)}")
    words = set(_WORD.findall(body))
    if unused := [key for key in constants if key not in words]:
        raise KeyError(f"{name}.wgsl uses none of the constants {unused}")
    bindings = {match[4]: Binding(int(match[1]), match[3] == "read") for match in _BINDING.finditer(body)}
    lines = [(line, ("constants", number)) for number, line in enumerate(header, 1)]
    lines += zip(text, origins, strict=True)
    lines.sort(key=lambda line: not line[0].startswith("enable "))  # WGSL wants these first
    return ShaderSource(name, "".join(f"{line}\n" for line, _ in lines), bindings, tuple(origin for _, origin in lines))


def _append(
    include: Include, chosen: Mapping[str, Include], used: set[str], text: list[str], origins: list[tuple[str, int]]
) -> None:
    name, lines = (include.name, _lines_of(include)) if isinstance(include, Path) else _shader(include)
    for number, line in enumerate(lines, 1):
        if match := _INCLUDE.match(line):
            used.add(match[1])
            _append(chosen.get(match[1], match[1]), chosen, used, text, origins)
        else:
            text.append(line)
            origins.append((name, number))


@cache
def _shader(name: str) -> tuple[str, list[str]]:
    file = files("rnn_engine_shaders") / f"{name}.wgsl"
    return file.name, _lines_of(file)


def _lines_of(file: Traversable) -> list[str]:
    return file.read_text("utf-8").splitlines()


def _literal(value: Constant) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value}u" if isinstance(value, int) else f"{value!r}f"
