"""The project's exceptions, and checks of single values that several layers make.

    RnnEngineError
    ├── InvalidRequestError    a request field holds a value that is not allowed      (HTTP 400)
    │   ├── PromptTooLongError a prompt has more tokens than are allowed              (HTTP 400)
    │   └── InvalidGrammarError a grammar is wrong, or takes too much to compile      (HTTP 400)
    ├── ForbiddenError         the client may not do what it asks                     (HTTP 403)
    ├── NotFoundError          a named thing does not exist                           (HTTP 404)
    │   └── ModelNotFoundError no model has that name                                 (HTTP 404)
    ├── ModelError             a model file can't be read or does not fit             (at load)
    ├── TokenizerError         a tokenizer can't be read or does not fit the model    (at load)
    ├── DeviceError            there is no such device, or it can't do what is needed (at load)
    │   └── DeviceMemoryError  the device has too little memory left                  (at load)
    ├── StateError             a state does not fit the model, or its file is damaged (HTTP 400)
    ├── StorageError           a folder of the server can't be written to             (HTTP 507)
    ├── OverloadedError        the queue, or another limited resource, is full        (HTTP 429)
    │   └── RateLimitError     a client has used up its limit for a minute            (HTTP 429)
    ├── TimeLimitError         a request's time is up before its first token          (HTTP 504)
    ├── UnavailableError       the device does not answer, or is being opened again   (HTTP 503)
    ├── EngineClosedError      the engine is stopping or has stopped                  (HTTP 503)
    ├── StepError              the forward pass failed for the requests of one step   (HTTP 500)
    │   └── MaskError          a request's grammar can't be followed further          (HTTP 400)
    └── ServerError            another server refuses or can't be reached             (as a client)

A message names what is wrong, shows the bad value and says what is allowed.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath, PureWindowsPath
from reprlib import Repr

import numpy as np


class RnnEngineError(Exception):
    """Base class of the project's exceptions. They can be pickled, whatever their constructors take."""

    def __reduce__(self) -> tuple[Callable[..., RnnEngineError], tuple[object, ...]]:
        return _restore, (type(self), self.args, self.__dict__)


class InvalidRequestError(RnnEngineError):
    """A request field holds a value that is not allowed."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field}: {_shorten(value)} is not allowed; expected {allowed}")


class PromptTooLongError(InvalidRequestError):
    """A request's prompts have more tokens than are allowed."""

    def __init__(self, field: str, num_tokens: int, most: int, allowed: str) -> None:
        self.num_tokens = num_tokens
        self.most = most
        super().__init__(field, num_tokens, allowed)


class InvalidGrammarError(InvalidRequestError):
    """A grammar can't be used. `position` is the line and column of the fault in its text, from 1, if known."""

    def __init__(self, field: str, value: object, allowed: str, position: tuple[int, int] | None) -> None:
        self.position = position
        super().__init__(field, value, allowed)


class ForbiddenError(RnnEngineError):
    """The client may not do what it asks."""


class NotFoundError(RnnEngineError):
    """A named thing does not exist."""


class ModelNotFoundError(NotFoundError):
    """No model has that name."""


class ModelError(RnnEngineError):
    """A model file can't be read, or its tensors are not those of a supported model."""


class TokenizerError(RnnEngineError):
    """A tokenizer can't be read, or does not fit the model."""


class DeviceError(RnnEngineError):
    """There is no such device, or it can't do what is needed."""


class DeviceMemoryError(DeviceError):
    """The device has too little memory left."""


class StateError(RnnEngineError):
    """A state does not fit the model, or its file is damaged."""


class StorageError(RnnEngineError):
    """A folder of the server can't be written to: the disk is full, read-only or broken."""


class OverloadedError(RnnEngineError):
    """The queue, or another limited resource, is full.

    The request was not accepted and may be sent again after `retry_after` seconds.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class RateLimitError(OverloadedError):
    """A client has used up its limit for a minute. `what` is what the limit counts: `requests` or `tokens`."""

    def __init__(self, message: str, retry_after: float, what: str) -> None:
        self.what = what
        super().__init__(message, retry_after)


class UnavailableError(RnnEngineError):
    """The device does not answer, is being opened again, or there is another temporary obstacle.

    A request may be sent again after `retry_after` seconds.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class TimeLimitError(RnnEngineError):
    """A request's time is up before its first token, so there is no text to answer with."""


class EngineClosedError(RnnEngineError):
    """The engine is stopping or has stopped."""


class StepError(RnnEngineError):
    """The forward pass failed for one step. Only the requests of that step are lost."""


class MaskError(StepError):
    """A request's grammar, or another mask of its tokens, can't be followed further. Only that request is lost."""


class ServerError(RnnEngineError):
    """Another server refuses a request, can't be reached, or broke off its answer."""


@contextmanager
def needs_extra(extra: str, what: str, error: Callable[[str], Exception]) -> Iterator[None]:
    """Raise `error` in place of ModuleNotFoundError, with a message that `what` needs the packages of `extra`.

    For blocks that only import modules.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise error(f"{what} needs the packages of the extra `{extra}`: pip install 'rnn-engine[{extra}]'") from missing


def _restore(kind: type[RnnEngineError], args: tuple[object, ...], fields: Mapping[str, object]) -> RnnEngineError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


def _shorten(value: object, limit: int = 80) -> str:
    beginning = Repr()  # a value may be as large as a request
    beginning.maxlevel = 4
    beginning.maxlist = beginning.maxtuple = beginning.maxdict = limit // 2
    beginning.maxstring = beginning.maxlong = beginning.maxother = 2 * limit
    text = beginning.repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise InvalidRequestError unless `low` <= `value` <= `high`. NaN is refused."""
    if not low <= value <= high:
        raise InvalidRequestError(name, value, f"a number from {low} to {high}")


def check_finite(name: str, value: float | None) -> None:
    """Raise InvalidRequestError unless `value` is None or a finite number from 0 on."""
    if value is not None and not 0 <= value < math.inf:
        raise InvalidRequestError(name, value, "a finite number of at least 0")


def are_token_ids(tokens: Sequence[int], vocab_size: int) -> bool:
    """Return True if all `tokens` are of Python's own type int and ids of a vocabulary of `vocab_size`."""
    return len(tokens) == 0 or (set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size)


def check_token_ids(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequestError for the first of `tokens` that is not an id of a vocabulary of `vocab_size`.

    The error names the token by `name` and its position: "prompt token 3".
    """
    if are_token_ids(tokens, vocab_size):
        return  # takes a fifth of the time of the loop below
    for position, token in enumerate(tokens):
        if not isinstance(token, int | np.integer) or not 0 <= token < vocab_size:
            raise InvalidRequestError(f"{name} {position}", token, f"a token id from 0 to {vocab_size - 1}")


def is_inner_path(text: str) -> bool:
    """Return True if `text` is a relative path that stays in the folder it is applied to, on every system.

    Return False for an absolute path, a Windows drive, `..`, control characters and text that is not valid Unicode.
    Links in the folder are not followed.
    """
    posix, windows = PurePosixPath(text), PureWindowsPath(text)
    parts = (*posix.parts, *windows.parts)
    rooted = posix.is_absolute() or windows.drive or windows.root
    return text != "" and not rooted and ".." not in parts and not has_control_characters(text)


def has_control_characters(text: str) -> bool:
    """Return True if `text` has control characters or parts of a surrogate pair, which no file name should have."""
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
