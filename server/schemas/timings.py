"""How long the parts of an answer took, in llama-server's words."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class Timings(TypedDict):
    """Tokens and milliseconds of the prompt, of which `cache_n` tokens were known and not run, and of the answer. Its
    milliseconds count from its first token, which comes with the prompt, and the rates are those of the others.
    `draft_n` tokens were run ahead of what was drawn, where any were, and `draft_n_accepted` of them were drawn."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]


class PromptProgress(TypedDict):
    """How far a prompt has come: its tokens, those that were known, those that are done, and the milliseconds since the
    first of these events."""

    total: int
    cache: int
    processed: int
    time_ms: float
