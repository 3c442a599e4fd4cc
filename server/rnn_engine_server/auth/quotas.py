"""Quotas: count the requests and tokens that each client uses per minute, and refuse those beyond its rate.

A quota is refilled continuously, so a client that asks evenly is never refused. After a pause it may use a minute's
worth at once. Quotas are counted in the memory of this process.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from rnn_engine.errors import InvalidRequestError, RateLimitError
from rnn_engine.requests import Event, Finished, GenerateRequest, Started, TextDelta
from rnn_engine_server.auth.keys import Rate

_SECONDS = 60.0  # that a quota is for


class Bucket:
    """A token bucket for one limit per minute: it refills steadily up to the limit. For one thread."""

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._left = float(limit)  # at `_then`; below 0 if more was taken than was left
        self._then = now

    def left(self, now: float) -> float:
        """Return how many requests or tokens are left at the time `now`, a negative number if too many were taken."""
        self._left = min(self._left + (now - self._then) * self.limit / _SECONDS, self.limit)
        self._then = now
        return self._left

    def take(self, amount: float, now: float) -> None:
        """Subtract `amount`, even if less is left. A negative amount is added, up to the limit."""
        self._left = min(self.left(now) - amount, self.limit)

    def seconds_until(self, amount: float, now: float) -> float:
        """Return in how many seconds the bucket has refilled to `amount`."""
        return max(amount - self.left(now), 0.0) * _SECONDS / self.limit


class RateLimiter:
    """The quotas of all clients of a server. For the event loop."""

    def __init__(
        self, note_refusal: Callable[[str], None] = lambda _: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start without clients.

        `note_refusal` is called with the quota, requests or tokens, that a rejected request exceeds.
        """
        self.note_refusal = note_refusal
        self.clock = clock
        self._quotas: dict[str, dict[str, Bucket]] = {}  # by client, and by requests and tokens
        self._swept = clock()

    def __len__(self) -> int:
        return len(self._quotas)

    def of(self, client: str, rate: Rate) -> Mapping[str, Bucket]:
        """Return a bucket for each limit of `client`, by requests and tokens; full ones if the client is new.

        Every call for one client must pass the same rate.
        """
        now = self.clock()
        if now - self._swept > _SECONDS:
            self._swept = now
            self._quotas = {
                name: buckets
                for name, buckets in self._quotas.items()
                if any(bucket.left(now) < bucket.limit for bucket in buckets.values())
            }
        if client not in self._quotas:
            limits = {"requests": rate.requests, "tokens": rate.tokens}
            self._quotas[client] = {what: Bucket(most, now) for what, most in limits.items() if most is not None}
        return self._quotas[client]


class Spending:
    """The use of a client's quotas by one HTTP request, or by one call that the server makes itself."""

    def __init__(self, quotas: RateLimiter, client: str, rate: Rate) -> None:
        self._quotas = quotas
        self._client = client
        self._quota = quotas.of(client, rate)
        self._is_counted = False

    def begin(self) -> None:
        """Count the HTTP request, but only at the first call.

        Raises RateLimitError if any of the client's quotas is used up.
        """
        if self._is_counted:
            return
        self._is_counted = True  # so that refused requests get the headers, too
        self._refuse_unless_left({"requests": 1.0, "tokens": 1.0})
        self._take("requests", 1.0)

    async def follow(
        self, request: GenerateRequest, events: AsyncGenerator[Event, None], *, has_begun: bool
    ) -> AsyncGenerator[Event, None]:
        """Yield the `events` of an engine request and charge its tokens to the client's quota.

        The most tokens that it can use are taken before; those that it did not use are given back at its end. If its
        HTTP request `has_begun`, the tokens are taken even if too few are left, and the client owes them. Otherwise
        raises RateLimitError if too few are left, or InvalidRequestError if the whole quota is too small.
        """
        async with aclosing(events):
            self.begin()
            num_prompt = sum(len(member.prompt) for member in request.members)
            most = num_prompt + request.max_tokens
            if not has_begun:
                if (quota := self._quota.get("tokens")) is not None and most > quota.limit:
                    allowed = f"a prompt and max_tokens of at most {quota.limit} together, the client's tokens a minute"
                    raise InvalidRequestError("max_tokens", most, allowed)
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
        """The `x-ratelimit` headers, as OpenAI's servers send them; empty if the HTTP request did not use the model."""
        if not self._is_counted:
            return {}
        now, headers = self._quotas.clock(), dict[str, str]()
        for what, bucket in self._quota.items():
            headers[f"x-ratelimit-limit-{what}"] = str(bucket.limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(max(int(bucket.left(now)), 0))
            headers[f"x-ratelimit-reset-{what}"] = _duration(bucket.seconds_until(bucket.limit, now))
        return headers

    def _take(self, what: str, amount: float) -> None:
        if (bucket := self._quota.get(what)) is not None:
            bucket.take(amount, self._quotas.clock())

    def _refuse_unless_left(self, wanted: Mapping[str, float]) -> None:
        now = self._quotas.clock()
        for what, amount in wanted.items():
            bucket = self._quota.get(what)
            if bucket is None or bucket.left(now) >= amount:
                continue
            self._quotas.note_refusal(what)
            left = max(int(bucket.left(now)), 0)
            raise RateLimitError(
                f"{self._client!r} may use {bucket.limit} {what} a minute and has {left} left; this takes {amount:.0f}",
                bucket.seconds_until(amount, now),
                what,
            )


def _duration(seconds: float) -> str:
    """Format a duration as OpenAI's servers do: 120ms, 1.5s or 6m0s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds / 1000, 60.0)
    return f"{f'{minutes:.0f}m' if minutes else ''}{rest:.4g}s"
