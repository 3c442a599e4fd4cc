"""A circuit breaker: what fails again and again is left alone for a while, so that nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable


class CircuitBreaker:
    """Opens after some failures in a row. After a pause one operation is tried; the pause doubles where that fails.

    For one thread; only `is_open` and `refuses` may be asked on others.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        most_failures: int = 3,
        first_pause: float = 1.0,
        longest_pause: float = 30.0,
    ) -> None:
        """`clock` gives seconds that never go back, the pauses are seconds."""
        self._clock = clock
        self._most_failures = most_failures
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._pause = first_pause
        self._failures = 0
        self._open_until: float | None = None  # None while closed
        self.openings = 0  # since the start

    @property
    def is_open(self) -> bool:
        """Whether the last operations have failed."""
        return self._open_until is not None

    @property
    def refuses(self) -> bool:
        """Whether no operation is to be begun now."""
        until = self._open_until
        return until is not None and self._clock() < until

    def allow(self) -> bool:
        """Whether to begin an operation, whose outcome is to be noted. While open, one after each pause."""
        if self.refuses:
            return False
        if self._open_until is not None:
            self._open_until = self._clock() + self._pause  # others wait for this one's outcome
        return True

    def note_success(self) -> None:
        """Close."""
        self._failures = 0
        self._open_until = None
        self._pause = self._first_pause

    def note_failure(self) -> None:
        """Open after too many failures in a row, and wait for longer where it was open."""
        self._failures += 1
        if self._failures < self._most_failures:
            return
        if self._open_until is None:
            self.openings += 1
        else:
            self._pause = min(2 * self._pause, self._longest_pause)
        self._open_until = self._clock() + self._pause
