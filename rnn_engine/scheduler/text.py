"""Turn the bytes of tokens into text: up to a stop string, and in whole characters.

A byte that can't be part of a character becomes U+FFFD at once and never holds up what follows.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from rnn_engine.scheduler.stops import StopMatcher


class TextStream:
    """Bytes in, text out; `match` is the stop string that ended it."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._matcher = StopMatcher(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def match(self) -> bytes | None:
        return self._matcher.match

    def feed(self, data: bytes) -> str:
        """The text that has become certain; after a match, all of it."""
        return self._decoder.decode(self._matcher.feed(data), final=self.match is not None)

    def flush(self) -> str:
        """The text that was held back, since no more bytes will come."""
        return self._decoder.decode(self._matcher.flush(), final=True)
