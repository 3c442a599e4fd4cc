"""A tuning run that Ctrl-C stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from rnn_engine.training.tuner import Event, Tuning


@contextmanager
def tuning_interrupted() -> Iterator[None]:
    """Return a context manager in which Ctrl-C stops each run after its third event."""
    run = Tuning.run

    def interrupted(self: Tuning) -> Iterator[Event]:
        for number, event in enumerate(run(self)):
            yield event
            if number == 2:
                raise KeyboardInterrupt

    with patch.object(Tuning, "run", interrupted):
        yield
