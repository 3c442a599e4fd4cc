"""An error in answers, in OpenAI's shape."""

from __future__ import annotations

from typing_extensions import TypedDict


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """What every answer that is not a success holds, and the last event of a stream that fails."""

    error: ErrorDetail
