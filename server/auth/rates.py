"""How many requests and tokens a client may ask for in a minute, and what it has asked for.

A quota is refilled all the time, so that a client which asks evenly is never refused; after a rest it may ask for a
minute's worth at once. It is counted in the memory of this process.
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
_FORM = f"requests=NUMBER, tokens=NUMBER or both with a comma, a minute, each from 1 to {_MOST}"


@dataclass(frozen=True, slots=True)
class Rate:
    """What a client may ask for in a minute. None = as much as it likes."""

    requests: int | None = None
    tokens: int | None = None  # of prompts and answers

    @property
    def words(self) -> tuple[str, ...]:
        """What is bounded, as `name=value`."""
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
    """What is left of one quota. For one thread."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._left = float(limit)  # at `_then`; below 0 where more was taken than there was
        self._then = now

    def left(self, now: float) -> float:
        """Return how much may be taken."""
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
    """What one client has left."""

    def __init__(self, rate: Rate, now: float) -> None:
        limits = {"requests": rate.requests, "tokens": rate.tokens}
        self.buckets = {what: Bucket(limit, now) for what, limit in limits.items() if limit is not None}

    def is_full(self, now: float) -> bool:
        """Whether it is as if the client had never asked."""
        return all(bucket.left(now) >= bucket.limit for bucket in self.buckets.values())


class RateLimiter:
    """The quotas of all clients of a server. For the event loop."""

    def __init__(
        self, note_refusal: Callable[[str], None] = lambda _: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`note_refusal` is called with what there was too little of: requests or tokens."""
        self.note_refusal = note_refusal
        self.clock = clock
        self._quotas: dict[str, ClientBuckets] = {}  # by client
        self._swept = clock()

    def __len__(self) -> int:
        return len(self._quotas)

    def of(self, client: str, rate: Rate) -> ClientBuckets:
        """Return the quota of `client`, which is always asked for with the same rate."""
        now = self.clock()
        if now - self._swept > _SECONDS:
            self._swept = now
            self._quotas = {name: quota for name, quota in self._quotas.items() if not quota.is_full(now)}
        if client not in self._quotas:
            self._quotas[client] = ClientBuckets(rate, now)
        return self._quotas[client]


class Spending:
    """What one HTTP request takes of its client's quota."""

    def __init__(self, quotas: RateLimiter, client: str, rate: Rate) -> None:
        self._quotas = quotas
        self._client = client
        self._quota = quotas.of(client, rate)
        self._is_counted = False

    def begin(self) -> None:
        """Count the request, the first time. Raises RateLimitError where the client has spent any of its quotas."""
        if self._is_counted:
            return
        self._is_counted = True  # those that are refused hear of their quota, too
        self._refuse_unless_left({"requests": 1.0, "tokens": 1.0})
        self._take("requests", 1.0)

    async def follow(
        self, request: GenerateRequest, events: AsyncGenerator[Event, None], *, has_begun: bool
    ) -> AsyncGenerator[Event, None]:
        """Yield `events`, which answer `request`. Its tokens are taken before and, as far as it used none, given back.

        Where the call that it belongs to `has_begun`, they are taken even if the client has too few left; it then owes
        them. Otherwise raises RateLimitError, or InvalidRequestError for more tokens than are ever left.
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
        """What OpenAI's servers say of a quota; nothing where the request asked for no answer of the model."""
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
