"""What samplers and penalties may ask about the sequence that they draw for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequenceContext:
    """The beginning of one sequence and its vocabulary."""

    earlier: Sequence[int] = ()  # tokens of earlier replies, oldest first, which count as seen
    prompt: Sequence[int] = ()
    stop_tokens: Sequence[int] = ()
    min_tokens: int = 0  # before which no stop token is drawn
    vocab_size: int = 2**16
    token_bytes: Callable[[int], bytes] = lambda _: b""


NO_CONTEXT = SequenceContext()
