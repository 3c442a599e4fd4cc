"""The cost of running a prompt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """How many tokens a prompt has, and how many of them came from the cache."""

    prompt_tokens: int
    cached_tokens: int
