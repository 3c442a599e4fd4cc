"""Quotas: how many requests and tokens a client may use in a minute.

A quota is refilled continuously, so a client that asks evenly is never refused. After a pause it may use a minute's
worth at once. Quotas are counted in the memory of this process.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, fields

from rnn_engine.errors import InvalidRequestError, RateLimitError
from rnn_engine.requests import Event, Finished, GenerateRequest, Started, TextDelta

_SECONDS = 60.0  # that a quota is for
_MOST = 10**12
_FORM = f"requests=NUMBER, tokens=NUMBER or both with a comma, each the most in a minute, from 1 to {_MOST}"


@dataclass(frozen=True, slots=True)
class Rate:
    """A client's limits for a minute. None = no limit."""

    requests: int | None = None
    tokens: int | None = None  # of prompts and answers

    @property
    def words(self) -> tuple[str, ...]:
        """The limits that are set, as `name=value`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return tuple(f"{name}={value}" for name, value in values.items() if value is not None)


UNBOUNDED = Rate()


def parse_rate(text: str) -> Rate:
    """Return the rate that `text` names, as `requests=60,tokens=100000`. Raises InvalidRequestError."""
    names = [field.name for field in fields(Rate)]
    values: dict[str, int] = {}
    for word in text.split(","):
        name, _, value = word.partition("=")
        is_number = value.isascii() and value.isdecimal() and len(value) <= len(str(_MOST))
        if name not in names or name in values or not is_number or not 1 <= int(value) <= _MOST:
            raise InvalidRequestError("rate", text, _FORM)
        values[name] = int(value)
    return Rate(**values)


class Bucket:
    """The unused part of one quota. For one thread."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._left = float(limit)  # at `_then`; below 0 if more was taken than was left
        self._then = now

    def left(self, now: float) -> float:
        """Return how much may be taken at the time `now`."""
        self._left = min(self._left + (now - self._then) * self.limit / _SECONDS, self.limit)
        self._then = now
        return self._left

    def take(self, amount: float, now: float) -> None:
        """Take `amount` even if less is left. A negative amount is given back."""
        self._left = min(self.left(now) - amount, self.limit)

    def seconds_until(self, amount: float, now: float) -> float:
        """Return after how many seconds `amount` may be taken."""
        return max(amount - self.left(now), 0.0) * _SECONDS / self.limit


class ClientBuckets:
    """The quotas of one client."""

    def __init__(self, rate: Rate, now: float) -> None:
        limits = {"requests": rate.requests, "tokens": rate.tokens}
        self.buckets = {what: Bucket(limit, now) for what, limit in limits.items() if limit is not None}

    def is_full(self, now: float) -> bool:
        """Return True if all quotas are full, as those of a client that has never asked."""
        return all(bucket.left(now) >= bucket.limit for bucket in self.buckets.values())


class RateLimiter:
    """The quotas of all clients of a server. For the event loop."""

    def __init__(
        self, note_refusal: Callable[[str], None] = lambda _: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`note_refusal` is called with the name of the quota that was too small: requests or tokens."""
        self.note_refusal = note_refusal
        self.clock = clock
        self._quotas: dict[str, ClientBuckets] = {}  # by client
        self._swept = clock()

    def __len__(self) -> int:
        return len(self._quotas)

    def of(self, client: str, rate: Rate) -> ClientBuckets:
        """Return the quotas of `client`. Every call for one client must pass the same rate."""
        now = self.clock()
        if now - self._swept > _SECONDS:
            self._swept = now
            self._quotas = {name: quota for name, quota in self._quotas.items() if not quota.is_full(now)}
        if client not in self._quotas:
            self._quotas[client] = ClientBuckets(rate, now)
        return self._quotas[client]


class Spending:
    """The part of its client's quotas that one HTTP request takes."""

    def __init__(self, quotas: RateLimiter, client: str, rate: Rate) -> None:
        self._quotas = quotas
        self._client = client
        self._quota = quotas.of(client, rate)
        self._is_counted = False

    def begin(self) -> None:
        """Count the request at the first call. Raises RateLimitError if any of the client's quotas is used up."""
        if self._is_counted:
            return
        self._is_counted = True  # so that refused requests get the headers, too
        self._refuse_unless_left({"requests": 1.0, "tokens": 1.0})
        self._take("requests", 1.0)

    async def follow(
        self, request: GenerateRequest, events: AsyncGenerator[Event, None], *, has_begun: bool
    ) -> AsyncGenerator[Event, None]:
        """Yield `events`, which answer `request`, and take its tokens from the quota.

        The most tokens that it can use are taken before; those that it did not use are given back at its end.
        If its HTTP request `has_begun`, the tokens are taken even if too few are left, and the client owes them.
        Otherwise raises RateLimitError if too few are left, or InvalidRequestError if the whole quota is too small.
        """
        async with aclosing(events):
            self.begin()
            num_prompt = sum(len(member.prompt) for member in request.members)
            most = num_prompt + request.max_tokens
            if not has_begun:
                self._refuse_if_ever(most)
                self._refuse_unless_left({"tokens": float(most)})
            self._take("tokens", most)
            num_used = 0
            try:
                async for event in events:
                    if isinstance(event, Started):
                        num_used += num_prompt
                    elif isinstance(event, TextDelta):
                        num_used += len(event.tokens)
                    elif isinstance(event, Finished):
                        num_used = num_prompt + event.completion_tokens
                    yield event
            finally:
                self._take("tokens", num_used - most)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers by which OpenAI's servers describe a quota; empty if the request did not ask the model."""
        if not self._is_counted:
            return {}
        now, headers = self._quotas.clock(), dict[str, str]()
        for what, bucket in self._quota.buckets.items():
            headers[f"x-ratelimit-limit-{what}"] = str(bucket.limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(max(int(bucket.left(now)), 0))
            headers[f"x-ratelimit-reset-{what}"] = _duration(bucket.seconds_until(bucket.limit, now))
        return headers

    def _take(self, what: str, amount: float) -> None:
        if (bucket := self._quota.buckets.get(what)) is not None:
            bucket.take(amount, self._quotas.clock())

    def _refuse_unless_left(self, wanted: Mapping[str, float]) -> None:
        now = self._quotas.clock()
        for what, amount in wanted.items():
            bucket = self._quota.buckets.get(what)
            if bucket is None or bucket.left(now) >= amount:
                continue
            self._quotas.note_refusal(what)
            left = max(int(bucket.left(now)), 0)
            raise RateLimitError(
                f"{self._client!r} may use {bucket.limit} {what} a minute and has {left} left; this takes {amount:.0f}",
                bucket.seconds_until(amount, now),
                what,
            )

    def _refuse_if_ever(self, num_tokens: int) -> None:
        bucket = self._quota.buckets.get("tokens")
        if bucket is not None and num_tokens > bucket.limit:
            allowed = f"a prompt and max_tokens of at most {bucket.limit} together, the client's tokens a minute"
            raise InvalidRequestError("max_tokens", num_tokens, allowed)


def _duration(seconds: float) -> str:
    """Return a time as OpenAI's servers write it: 120ms, 1.5s or 6m0s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds / 1000, 60.0)
    return f"{f'{minutes:.0f}m' if minutes else ''}{rest:.4g}s"
