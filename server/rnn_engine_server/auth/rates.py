"""Rates: how many requests and tokens a client may use per minute. `quotas` counts what it uses."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rnn_engine.errors import InvalidRequestError

_MOST = 10**12
_FORM = f"requests=NUMBER, tokens=NUMBER or both with a comma, each the most in a minute, from 1 to {_MOST}"


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
        is_number = value.isascii() and value.isdecimal() and len(value) <= len(str(_MOST))
        if name not in names or name in values or not is_number or not 1 <= int(value) <= _MOST:
            raise InvalidRequestError("rate", text, _FORM)
        values[name] = int(value)
    return Rate(**values)
