"""API keys, each with a name, a scope and a rate. The server stores only their hashes."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Self

from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import read_text

_MOST_RATE = 10**12
_RATE_FORM = f"requests=NUMBER, tokens=NUMBER or both with a comma, each the most in a minute, from 1 to {_MOST_RATE}"


@dataclass(frozen=True, slots=True)
class Rate:
    """A client's limits per minute on requests and tokens. None = no limit."""

    requests: int | None = None
    tokens: int | None = None  # of prompts and answers

    @property
    def words(self) -> tuple[str, ...]:
        """The limits that are set, each in the form `name=value`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return tuple(f"{name}={value}" for name, value in values.items() if value is not None)


UNBOUNDED = Rate()


def parse_rate(text: str) -> Rate:
    """Parse a client's limits per minute, such as `requests=60,tokens=100000`. Raises InvalidRequestError."""
    names = [field.name for field in fields(Rate)]
    values: dict[str, int] = {}
    for word in text.split(","):
        name, _, value = word.partition("=")
        is_number = value.isascii() and value.isdecimal() and len(value) <= len(str(_MOST_RATE))
        if name not in names or name in values or not is_number or not 1 <= int(value) <= _MOST_RATE:
            raise InvalidRequestError("rate", text, _RATE_FORM)
        values[name] = int(value)
    return Rate(**values)


class Scope(Enum):
    """The permissions of an API key. Each scope includes those listed before it."""

    USE = "use"  # run the model, and read which states there are
    MANAGE = "manage"  # make, change, export and remove states, files, jobs and the like of its own
    ADMIN = "admin"  # see, change and remove what any key made, and what all share

    def includes(self, other: Scope) -> bool:
        """Return True if this scope has the permissions of `other`."""
        scopes = list(Scope)
        return scopes.index(other) <= scopes.index(self)


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request, as far as access control knows it: an API key's name, scope and limits.

    Without keys, one principal stands for all senders.
    """

    name: str  # of the key; empty where no key is asked for
    scope: Scope
    weight: float = 1.0  # of its share of the engine
    rate: Rate | None = None  # None = what the server has for all


ANYONE = Principal("", Scope.ADMIN)
"""The principal of every request if there are no keys."""

# API keys, each with a name and a scope.
#
# A hash is SHA-256 without salt: keys that `new_key` makes have 256 random bits, so they can't be guessed. A key that
# a person made up could be guessed from its hash, as it could be by trying keys on the server.

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASHED = re.compile(r"sha256:([0-9a-f]{64})")
_LINE = (
    "a line such as `NAME KEY` or `NAME:SCOPE KEY`, where KEY may be `sha256:` and 64 hexadecimal digits; "
    "`weight=NUMBER`, `requests=NUMBER` and `tokens=NUMBER` may follow"
)
_MOST_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key that the server accepts: the principal that it identifies, and the hash of the key."""

    principal: Principal
    digest: bytes = field(repr=False)

    @classmethod
    def of(
        cls, key: str, name: str = "operator", scope: Scope = Scope.ADMIN, weight: float = 1.0, rate: Rate | None = None
    ) -> Self:
        """Make an `ApiKey` from a plain-text key. Raises InvalidRequestError if no HTTP request could send the key."""
        if not key.isascii() or not key.isprintable() or key != key.strip() or not key:
            allowed = "printable ASCII characters without spaces around them"
            message = f"the API key {name!r} can't be sent in a request; expected {allowed}"
            raise InvalidRequestError("API key", name, allowed, message)
        return cls(Principal(name, scope, weight, rate), _digest(key))

    @property
    def line(self) -> str:
        """The line for this API key in a file of keys."""
        principal = self.principal
        weight = () if principal.weight == 1.0 else (f"weight={principal.weight:g}",)
        rate = () if principal.rate is None else principal.rate.words
        return " ".join((f"{principal.name}:{principal.scope.value}", f"sha256:{self.digest.hex()}", *weight, *rate))


class KeyRing:
    """All API keys that a server accepts."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)

    def find(self, key: str) -> Principal | None:
        """Return the principal to whom an API key belongs, or None if the server does not accept the key.

        Takes the same time for every key.
        """
        given = _digest(key)
        found = None
        for known in self._keys:
            if hmac.compare_digest(known.digest, given):
                found = known.principal
        return found


def check_keys(keys: Iterable[ApiKey]) -> None:
    """Raise InvalidRequestError if two API keys have the same name or are the same."""
    names: set[str] = set()
    digests: set[bytes] = set()
    for key in keys:
        name = key.principal.name
        if name in names:
            message = f"two API keys are called {name!r}; give each a name of its own"
            raise InvalidRequestError("API key", name, "a name of its own", message)
        if key.digest in digests:
            message = f"the API key {name!r} is the same as that of another name; give each name a key of its own"
            raise InvalidRequestError("API key", name, "a key of its own", message)
        names.add(name)
        digests.add(key.digest)


def check_key_name(name: str) -> str:
    """Return `name` unchanged. Raises InvalidRequestError if an API key may not have this name."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            "key name", name, "1 to 64 letters, digits, dots, hyphens and underscores, the first a letter or a digit"
        )
    return name


def parse_weight(text: str) -> float:
    """Parse the weight of an API key, its share of the engine. Raises InvalidRequestError if `text` is not valid."""
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0.0 < weight <= _MOST_WEIGHT:  # also refuses NaN
        raise InvalidRequestError("weight", text, f"a number above 0 and at most {_MOST_WEIGHT:g}")
    return weight


def new_key() -> str:
    """Return a new API key of 256 random bits."""
    return f"rnn-{secrets.token_urlsafe(32)}"


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read a file of API keys, one on each line: `NAME KEY` or `NAME:SCOPE KEY`.

    Empty lines and those with # are skipped. The scope is `use`, `manage` (what a key has without one) or `admin`. KEY
    is the key itself or its hash, as `rnn-engine key` prints it. After it may come the key's weight, and how many
    requests and tokens it may use in a minute, as `weight=2 requests=60 tokens=100000`. Raises InvalidRequestError,
    which never shows a key, or OSError.
    """
    try:
        text = read_text(path)
    except UnicodeDecodeError:
        message = f"{path} is not text in UTF-8; expected a file of API keys"
        raise InvalidRequestError("API key file", str(path), "a text file in UTF-8", message) from None
    return tuple(_parse(text, path))


def _parse(text: str, path: Path) -> Iterator[ApiKey]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match line.split():
            case [label, key, *words]:
                yield _key(label, key, words, f"line {number} of {path}")
            case _:
                raise _wrong_line(f"line {number} of {path}")


def _key(label: str, key: str, words: Sequence[str], place: str) -> ApiKey:
    name, colon, word = label.partition(":")
    try:
        check_key_name(name)
        scope = Scope(word) if colon else Scope.MANAGE
    except ValueError:
        scopes = ", ".join(scope.value for scope in Scope)
        raise InvalidRequestError(f"{place}: scope", word, f"one of {scopes}") from None
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{place}: {error.field}", error.value, error.allowed) from None
    try:
        weight, rate = _share(words)
    except InvalidRequestError:  # which shows what may be part of a key
        raise _wrong_line(place) from None
    if not key.startswith("sha256:"):
        return ApiKey.of(key, name, scope, weight, rate)
    hashed = _HASHED.fullmatch(key.lower())
    if hashed is None:
        raise _wrong_line(place)
    return ApiKey(Principal(name, scope, weight, rate), bytes.fromhex(hashed[1]))


def _wrong_line(place: str) -> InvalidRequestError:
    """Return the error for a line that can't be parsed. It does not show the line, which may have a key."""
    return InvalidRequestError("API key file", place, _LINE, f"{place} is no API key; expected {_LINE}")


def _share(words: Sequence[str]) -> tuple[float, Rate | None]:
    """Parse the words that follow an API key in a file of keys: its weight and its rate. Raises InvalidRequestError."""
    weights = [word.removeprefix("weight=") for word in words if word.startswith("weight=")]
    rates = [word for word in words if not word.startswith("weight=")]
    return parse_weight(",".join(weights or ["1"])), parse_rate(",".join(rates)) if rates else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
