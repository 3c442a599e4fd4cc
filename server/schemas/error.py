"""An error in answers, in OpenAI's shape."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class ErrorDetail(TypedDict):
    """Where prompts are too long, `n_prompt_tokens` says how many tokens they have and `n_ctx` how many are allowed.
    Where a grammar, a regular expression or the text of a JSON schema is wrong, `line` and `column` say where, counted
    from 1 and in characters, as far as that is known."""

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: NotRequired[int]
    n_ctx: NotRequired[int]
    line: NotRequired[int]
    column: NotRequired[int]


class ErrorBody(TypedDict):
    """What every answer that is not a success holds, and the last event of a stream that fails."""

    error: ErrorDetail
