"""The project's exceptions, and functions that check single values, such as token ids, and raise these exceptions.

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
    └── StepError              the forward pass failed for the requests of one step   (HTTP 500)
        └── MaskError          a request's grammar can't be followed further          (HTTP 400)

A message names what is wrong, shows the bad value and says what is allowed.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import PurePosixPath, PureWindowsPath
from reprlib import Repr


class RnnEngineError(Exception):
    """Base class of the project's exceptions. All can be pickled, whatever arguments their constructors take."""

    def __reduce__(self) -> tuple[Callable[..., RnnEngineError], tuple[object, ...]]:
        return _restore, (type(self), self.args, self.__dict__)


class InvalidRequestError(RnnEngineError):
    """A request field holds a value that is not allowed. `message` replaces the usual words."""

    def __init__(self, field: str, value: object, allowed: str, message: str | None = None) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        self.message = message
        super().__init__(message or f"{field}: {_shorten(value)} is not allowed; expected {allowed}")


class PromptTooLongError(InvalidRequestError):
    """Raised if the prompts of a request have more tokens than are allowed."""

    def __init__(self, field: str, num_tokens: int, most: int, allowed: str) -> None:
        self.num_tokens = num_tokens
        self.most = most
        super().__init__(field, num_tokens, allowed)


class InvalidGrammarError(InvalidRequestError):
    """Raised if a request's grammar can't be used. `position` is the line and column of its fault, from 1, if known."""

    def __init__(self, field: str, value: object, allowed: str, position: tuple[int, int] | None) -> None:
        self.position = position
        super().__init__(field, value, allowed)


class ForbiddenError(RnnEngineError):
    """Raised if a client lacks the permission for what it asks."""


class NotFoundError(RnnEngineError):
    """Raised if there is nothing with a name or id that a request contains, such as that of a stored state."""


class ModelNotFoundError(NotFoundError):
    """Raised if there is no model with the name that a request contains."""


class ModelError(RnnEngineError):
    """Raised if a model file can't be read, or if its tensors are not those of a supported model."""


class TokenizerError(RnnEngineError):
    """Raised if a tokenizer can't be read, or does not fit the model."""


class DeviceError(RnnEngineError):
    """Raised if a compute device, such as a GPU, does not exist or can't do what a model needs."""


class DeviceMemoryError(DeviceError):
    """Raised if a compute device, such as a GPU, has too little memory left."""


class StateError(RnnEngineError):
    """Raised if a saved state of a model does not fit the model, or if its file is damaged."""


class StorageError(RnnEngineError):
    """Raised if a folder of the server can't be written to: the disk is full, read-only or broken."""


class OverloadedError(RnnEngineError):
    """The queue of requests, or another limited resource, is full. Try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class RateLimitError(OverloadedError):
    """Raised if a client has used up its limit for a minute of `what`, which is `requests` or `tokens`."""

    def __init__(self, message: str, retry_after: float, what: str) -> None:
        self.what = what
        super().__init__(message, retry_after)


class UnavailableError(RnnEngineError):
    """The device does not answer, or another temporary obstacle. Try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class TimeLimitError(RnnEngineError):
    """Raised if a request's time is up before its first token, so that there is no text to answer with."""


class EngineClosedError(RnnEngineError):
    """Raised if the engine is stopping or has stopped."""

    def __init__(self, message: str = "the engine has stopped") -> None:
        super().__init__(message)


class StepError(RnnEngineError):
    """Raised if the model's forward pass fails in one step. Only the requests of that step are lost."""


class MaskError(StepError):
    """Raised if a request's grammar or token mask can't be followed further. Only that request is lost."""


@contextmanager
def needs_extra(extra: str, what: str, error: Callable[[str], BaseException]) -> Iterator[None]:
    """Around imports: turn ModuleNotFoundError into `error`, which says that `what` needs the pip extra `extra`."""
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


def without_credentials(url: str) -> str:
    """Return an address without user and password, for logs and errors. It need not be a valid one."""
    scheme, colon, rest = url.partition("://")
    return scheme + colon + rest.rpartition("@")[2] if colon else url.rpartition("@")[2]


def hide_credentials(text: str) -> str:
    """Return a text in which valid URLs have only scheme, host and path, since their other parts may be secret."""
    return _URL.sub(r"\1\2", text)


_URL = re.compile(r"(\w+://)(?:[^\s/?#]*@)?([^\s?#]*)(?:[?#]\S*)?")


def check_process(process: int, what: str) -> None:
    """Raise EngineClosedError unless this is the process with the id `process`, which opened `what`, such as an LLM."""
    if process != os.getpid():
        raise EngineClosedError(
            f"this {what} belongs to process {process}, from which this process was forked; make another one here, "
            "after the fork"
        )


def is_number(value: object) -> bool:
    """Return True for real numbers, numpy's too."""
    return isinstance(value, Real)


def is_whole(value: object) -> bool:
    """Return True for whole numbers, numpy's too."""
    return isinstance(value, Integral)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise InvalidRequestError for the field `name` unless `low` <= `value` <= `high`. NaN is refused.

    Each request has dozens of fields to check, and `isinstance` is slow for the abstract type `Real`. So it is asked
    only about other classes than int and float. `check_whole` does the same.
    """
    if (value.__class__ not in (int, float) and not is_number(value)) or not low <= value <= high:
        raise InvalidRequestError(name, value, f"a number from {_plain(low)} to {_plain(high)}")


def check_whole(name: str, value: int, low: int, high: int) -> None:
    """Raise InvalidRequestError for the field `name` unless `value` is a whole number from `low` to `high`."""
    if value.__class__ is not int and not is_whole(value):
        raise InvalidRequestError(name, value, f"a whole number from {low} to {high}")
    if not low <= value <= high:
        raise InvalidRequestError(name, value, f"a number from {low} to {high}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise InvalidRequestError for the field `name` unless `value` is one of `choices`."""
    if value not in choices:
        raise InvalidRequestError(name, value, f"one of {', '.join(choices)}")


def check_list(name: str, value: object, allowed: str) -> None:
    """Raise InvalidRequestError for `name` unless `value` can be indexed and is neither a text nor a mapping."""
    if isinstance(value, str | bytes | Mapping) or not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        raise InvalidRequestError(name, value, allowed)


def _plain(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)  # 0 for 0.0


def check_finite(name: str, value: float | None) -> None:
    """Raise InvalidRequestError for the field `name` unless `value` is None or a finite number of at least 0."""
    if value is not None and not 0 <= value < math.inf:
        raise InvalidRequestError(name, value, "a finite number of at least 0")


_CHECKED = 1 << 13  # tokens at a time; other threads run in between


class TokenIds(tuple[int, ...]):
    """Token ids of which the same is asked more than once; for a million, each answer takes 20 to 60 ms.

    No lock is held meanwhile. Before Python 3.12, `cached_property` holds one that all requests would share.
    """

    greatest: int | None = None  # of the ids, once `are_token_ids` or who made them has found it
    _packed: bytes | None = None

    @property
    def packed(self) -> bytes:
        """The ids, each as an unsigned 32-bit integer of four bytes."""
        if self._packed is None:
            starts = range(0, len(self), _CHECKED)
            self._packed = b"".join(array("I", self[start : start + _CHECKED]) for start in starts)
        return self._packed


def are_token_ids(tokens: Sequence[int], vocab_size: int) -> bool:
    """Return True if all `tokens` are Python's ints, not numpy's, and ids in a vocabulary of `vocab_size` tokens."""
    if isinstance(tokens, TokenIds) and tokens.greatest is not None:
        return tokens.greatest < vocab_size
    greatest = 0
    for start in range(0, len(tokens), _CHECKED):
        part = tokens[start : start + _CHECKED]
        if set(map(type, part)) != {int} or min(part) < 0:
            return False
        greatest = max(greatest, max(part))
    if isinstance(tokens, TokenIds):
        tokens.greatest = greatest
    return greatest < vocab_size


def check_token_ids(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequestError for the first of `tokens` that is not an id in a vocabulary of `vocab_size` tokens.

    The error names the token by `name` and its position: "prompt token 3".
    """
    if are_token_ids(tokens, vocab_size):
        return  # takes a fifth of the time of the loop below
    for position, token in enumerate(tokens):
        if not _is_token_id(token, vocab_size):
            raise InvalidRequestError(f"{name} {position}", token, f"a token id from 0 to {vocab_size - 1}")


def _is_token_id(token: object, vocab_size: int) -> bool:
    return isinstance(token, Integral) and 0 <= int(token) < vocab_size


def check_text(text: str) -> None:
    """Raise InvalidRequestError for an unpaired surrogate, which JSON allows and UTF-8 does not."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "text", text[error.start : error.end], "Unicode text without unpaired surrogates"
        ) from error


def is_inner_path(text: str) -> bool:
    """Return True if `text` is a relative path that can't lead out of the folder to which it is joined, on any system.

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
