"""A shell for the tests of the set-up: it runs nothing, returns scripted answers, and records the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tools.setup.shell import SetupError, Shell


@dataclass
class FakeShell(Shell):
    """A shell that runs nothing. `answers` maps a part of a command line to its output, or to a function for that.

    `run` fails if the line contains an entry of `failing`. `read` fails if it has no answer for the line.
    """

    programs: tuple[str, ...] = ("apt-get",)
    prefix: tuple[str, ...] | None = ()
    answers: Mapping[str, str | Callable[[], str]] = field(default_factory=dict)
    failing: tuple[str, ...] = ()
    effects: dict[str, Callable[[], object]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def root_prefix(self) -> tuple[str, ...] | None:
        return self.prefix

    def say(self, message: str) -> None:
        self.said.append(message)

    def has(self, program: str) -> bool:
        return program in self.programs

    def run(self, *command: str, cwd: str | None = None) -> None:
        line = " ".join(command)
        self.commands.append(line)
        if any(part in line for part in self.failing):
            raise SetupError(f"this command failed: {line}")
        for part, effect in self.effects.items():
            if part in line:
                effect()

    def read(self, *command: str) -> str | None:
        line = " ".join(command)
        found = next((answer for part, answer in self.answers.items() if part in line), None)
        return found() if callable(found) else found
