"""What running a prompt took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """The tokens of a prompt, and how many of them had been run before."""

    prompt_tokens: int
    cached_tokens: int
