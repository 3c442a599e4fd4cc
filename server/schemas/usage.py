"""The token counts of an answer."""

from __future__ import annotations

from typing_extensions import TypedDict


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    """Tokens; a prompt counts once, however many answers it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
