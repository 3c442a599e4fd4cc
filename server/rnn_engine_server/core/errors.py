"""Convert exceptions to HTTP error answers in OpenAI's form."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TypeAlias

from aiohttp import web

from rnn_engine.errors import (
    DeviceError,
    DeviceMemoryError,
    EngineClosedError,
    ForbiddenError,
    InvalidGrammarError,
    InvalidRequestError,
    MaskError,
    ModelError,
    ModelNotFoundError,
    NotFoundError,
    OverloadedError,
    PromptTooLongError,
    RateLimitError,
    StateError,
    StepError,
    StorageError,
    TimeLimitError,
    TokenizerError,
    UnavailableError,
)
from rnn_engine_server.core.schema import ErrorBody, ErrorDetail

_log = logging.getLogger(__name__)


class RefusalError(Exception):
    """Raised to answer with an HTTP status that no other error stands for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Failure:
    """An error answer, not yet in the form of an API: HTTP status, the fields of the error object, and headers."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    too_long: PromptTooLongError | None = None
    position: tuple[int, int] | None = None  # line and column of a grammar

    @property
    def body(self) -> ErrorBody:
        error: ErrorDetail = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        if self.too_long is not None:
            error |= {"n_prompt_tokens": self.too_long.num_tokens, "n_ctx": self.too_long.most}
        if self.position is not None:
            error["line"], error["column"] = self.position
        return {"error": error}

    def response(self, form: ErrorForm) -> web.Response:
        status, body = form(self)
        return web.json_response(body, status=status, headers=self.headers)


ErrorForm: TypeAlias = Callable[[Failure], tuple[int, Mapping[str, object]]]
"""Returns the status and the body that report a failure. Its annotation is the body's type."""


def openai_error(failure: Failure) -> tuple[int, ErrorBody]:
    """Return the HTTP status and the body of an error in OpenAI's form."""
    return failure.status, failure.body


def describe(error: Exception) -> Failure:
    """Convert an exception to the error answer that reports it to the client.

    An unexpected exception is logged, and its details are not sent.
    """
    match error:
        case PromptTooLongError():
            kind, code = "exceed_context_size_error", "context_length_exceeded"
            return Failure(400, str(error), kind, code, error.field, too_long=error)
        case InvalidGrammarError():
            return Failure(
                400, str(error), "invalid_request_error", "invalid_value", error.field, position=error.position
            )
        case InvalidRequestError():
            return Failure(400, str(error), "invalid_request_error", "invalid_value", error.field)
        case DeviceMemoryError():
            return Failure(507, str(error), "server_error", "device_memory")
        case StateError() | TokenizerError() | ModelError() | DeviceError():
            return Failure(400, str(error), "invalid_request_error")
        case ForbiddenError():
            return Failure(403, str(error), "permission_error", "forbidden")
        case ModelNotFoundError():
            return Failure(404, str(error), "invalid_request_error", "model_not_found", "model")
        case NotFoundError():
            return Failure(404, str(error), "invalid_request_error", "not_found")
        case StorageError():
            return Failure(507, str(error), "server_error", "storage_failed")
        case RateLimitError():
            return Failure(429, str(error), error.what, "rate_limit_exceeded", headers=retry_headers(error.retry_after))
        case OverloadedError():
            return Failure(429, str(error), "rate_limit_error", "overloaded", headers=retry_headers(error.retry_after))
        case TimeLimitError():
            return Failure(504, str(error), "server_error", "timeout")
        case UnavailableError():
            return Failure(503, str(error), "server_error", "unavailable", headers=retry_headers(error.retry_after))
        case EngineClosedError():
            return Failure(503, str(error), "server_error", "closing", headers=retry_headers(1.0))
        case MaskError():
            return Failure(400, str(error), "invalid_request_error", "grammar_failed")
        case StepError():
            return Failure(500, f"the model failed on this request: {error}", "server_error", "step_failed")
        case RefusalError():
            return _of_status(error.status, str(error), HTTPStatus(error.status).phrase)
    _log.error("a request failed", exc_info=error)
    return Failure(500, "internal error; the server's log has the details", "server_error", "internal_error")


def retry_headers(seconds: float) -> dict[str, str]:
    """Return the headers that say after how many seconds the client may send the request again."""
    return {"Retry-After": str(max(1, math.ceil(seconds))), "Retry-After-Ms": str(math.ceil(seconds * 1000))}


_KEPT_HEADERS = ("Accept-Encoding", "Access-Control-Allow-Origin", "Allow", "Connection", "WWW-Authenticate")
_KINDS = {401: "authentication_error", 403: "permission_error"}


def describe_http(error: web.HTTPException, message: str) -> Failure:
    """Convert an exception that aiohttp raised to an error answer with the given message."""
    headers = {name: error.headers[name] for name in _KEPT_HEADERS if name in error.headers}
    return replace(_of_status(error.status, message, error.reason), headers=headers)


def _of_status(status: int, message: str, reason: str) -> Failure:
    kind = "server_error" if status >= 500 else _KINDS.get(status, "invalid_request_error")
    return Failure(status, message, kind, reason.lower().replace(" ", "_"))
