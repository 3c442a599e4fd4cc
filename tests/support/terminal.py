"""A program in a terminal of its own, with the screen that a person would see."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pexpect
import pyte

LINES, COLUMNS = 40, 80
LEFT, UP, BACKSPACE, ALT_ENTER, CTRL_C, CTRL_D = "\x1b[D", "\x1b[A", "\x7f", "\x1b\r", "\x03", "\x04"
_MARKS_PASTES = 2004 << 5  # pyte's number of the private mode 2004
_TIMEOUT = 120  # seconds until a text has to be there


class _Screen(pyte.Screen):
    """A screen that answers the program's queries, such as for the cursor's position."""

    def __init__(self, child: pexpect.spawn) -> None:
        super().__init__(COLUMNS, LINES)
        self._child = child

    def write_process_input(self, data: str) -> None:
        self._child.send(data)


class Terminal:
    """A terminal with a program in it. Tests type into it, and read the screen."""

    def __init__(self, child: pexpect.spawn) -> None:
        self._child = child
        self._screen = _Screen(child)
        self._stream = pyte.Stream(self._screen)

    @property
    def lines(self) -> list[str]:
        """The lines of the screen that are not empty."""
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def type(self, keys: str) -> None:
        self._child.send(keys)

    def paste(self, text: str) -> None:
        """Send a text as a terminal does that pastes it: with marks around it if the program has asked for them."""
        lines = text.replace("\n", "\r")
        self.type(f"\x1b[200~{lines}\x1b[201~" if _MARKS_PASTES in self._screen.mode else lines)

    def wait_for(self, text: str) -> None:
        """Read the program's output until `text` is in the last lines."""
        while not any(text in line for line in self.lines[-3:]):
            self._stream.feed(self._child.read_nonblocking(4096, timeout=_TIMEOUT))

    def wait_for_prompt(self) -> None:
        """Read the program's output until it asks for a line."""
        while self.lines[-1:] != ["User:"]:
            self._stream.feed(self._child.read_nonblocking(4096, timeout=_TIMEOUT))

    def wait_for_end(self) -> int | None:
        """Read all output, and return the program's exit status."""
        self._child.expect(pexpect.EOF, timeout=_TIMEOUT)
        self._stream.feed(self._child.before)
        self._child.close()
        status: int | None = self._child.exitstatus
        return status


@contextmanager
def open_terminal(
    *arguments: object, environment: Mapping[str, str], module: str = "rnn_engine.cli"
) -> Iterator[Terminal]:
    """Run `rnn-engine`, or another `module`, with arguments in a terminal; it ends with the block."""
    command = ["-m", module, *map(str, arguments)]
    env = {**environment, "TERM": "xterm-256color"}
    child = pexpect.spawn(sys.executable, command, env=env, dimensions=(LINES, COLUMNS), encoding="utf-8")
    try:
        yield Terminal(child)
    finally:
        child.close(force=True)
