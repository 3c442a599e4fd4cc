"""Find work on large values on the event loop's thread, by counting calls and not by time."""

from __future__ import annotations

import sys
from asyncio.events import Handle
from functools import cache
from inspect import CO_COROUTINE
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

_ROOT = Path(__file__).resolve().parents[2]
_WATCHED = (str(_ROOT / "server"), str(_ROOT / "rnn_engine"), str(_ROOT / "states"))
_OF_SERVER = f"{Path('aiohttp', 'web')}"  # aiohttp's own code that makes answers, as web_response.py
_QUICK = frozenset({"are_token_ids", "check_token_ids"})  # loops in C over no more tokens than the limits allow
_RUN = Handle._run.__code__
_CHEAP = frozenset({"append", "get", "pop", "extend", "startswith", "endswith", "items", "values", "keys"})


class LoopGuard:
    """A guard of the thread that enters it, which notes work on large values.

    It notes callbacks of the loop that make more than `most_calls` calls. It notes texts of more than `most_size`
    characters that a function returns, and method calls on texts, lists or dicts of more than `most_size` items.
    Other threads are not watched."""

    def __init__(self, most_calls: int = 10_000, most_size: int = 50_000) -> None:
        self._most_calls = most_calls
        self._most_size = most_size
        self._calls = 0
        self.offences: dict[str, int] = {}  # place -> the calls or the size

    def _see(self, frame: FrameType, event: str, arg: Any) -> None:  # noqa: ANN401
        if event == "call":
            if frame.f_code is _RUN:
                self._calls = 0
                return
        elif event not in ("c_call", "return"):
            return
        if not _is_watched(frame.f_code.co_filename) or frame.f_code.co_name in _QUICK:
            return
        if event == "return":
            if isinstance(arg, str | bytes) and len(arg) > self._most_size and not _passes_on(frame, arg):
                self._note(frame, len(arg), "returned")
            return
        self._calls += 1
        if self._calls > self._most_calls:
            self._note(frame, self._calls)
        owner: Any = getattr(arg, "__self__", None)
        has_parts = isinstance(owner, str | bytes | bytearray | list | dict)
        if has_parts and len(owner) > self._most_size and arg.__name__ not in _CHEAP:
            self._note(frame, len(owner), arg.__name__)

    def _note(self, frame: FrameType, size: int, method: str = "") -> None:
        name = Path(frame.f_code.co_filename).name
        place = f"{name}:{frame.f_code.co_name} {method}".rstrip()
        self.offences[place] = max(size, self.offences.get(place, 0))

    def __enter__(self) -> Self:
        sys.setprofile(self._see)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)


def _passes_on(frame: FrameType, value: str | bytes) -> bool:
    """Return True if the function that returns `value` got it as an argument, or is a coroutine."""
    code = frame.f_code
    given = (frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount])
    return bool(code.co_flags & CO_COROUTINE) or any(value is each for each in given)


@cache
def _is_watched(path: str) -> bool:
    return path.startswith(_WATCHED) or _OF_SERVER in path
