"""The inboxes of all requests that have not ended, and the way to them from the worker's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from rnn_engine.errors import RnnEngineError
from rnn_engine.scheduler.inbox import Delivery, Inbox

_GATHER_SECONDS = 0.001  # a delivery that comes less than this after another one waits for it to pass


class Inboxes:
    """Hands deliveries to the inboxes of their requests. For one event loop, but for `post`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._inboxes: dict[int, Inbox] = {}
        self._outbox: list[Delivery] = []  # from the worker's thread to the loop's
        self._is_awake = False  # the loop is going to look into the outbox by itself
        self._lock = threading.Lock()  # for the two above

    def __len__(self) -> int:
        return len(self._inboxes)

    def open(self, key: int, pause: Callable[[bool], None]) -> Inbox:
        """Return a new inbox, which gets what is delivered to `key`. For `pause` see `Inbox`."""
        inbox = self._inboxes[key] = Inbox(pause)
        return inbox

    def remove(self, key: int) -> None:
        """Drop what is delivered to `key` from now on."""
        del self._inboxes[key]

    def post(self, deliveries: list[Delivery]) -> None:
        """Have the loop deliver these; wakes it, unless it is about to look anyway. May be called on any thread."""
        with self._lock:
            self._outbox += deliveries
            asleep, self._is_awake = not self._is_awake, True
        if asleep:
            with suppress(RuntimeError):  # the loop was closed, so nobody is left to read anything
                self._loop.call_soon_threadsafe(self._dispatch)

    def end(self, make_error: Callable[[], RnnEngineError]) -> None:
        """Deliver what was posted, and behind it an error of its own to each request."""
        self._empty_outbox()
        for inbox in self._inboxes.values():
            inbox.put(make_error())

    def _dispatch(self) -> None:
        """Empty the outbox into the inboxes, again and again until nothing comes for a while.

        So short steps, which follow each other more quickly than that, share a wake-up, and their text an event.
        """
        if self._empty_outbox():
            self._loop.call_later(_GATHER_SECONDS, self._dispatch)

    def _empty_outbox(self) -> bool:
        """Hand everything in the outbox to its inbox; return whether there was anything."""
        with self._lock:
            deliveries, self._outbox = self._outbox, []
            self._is_awake = len(deliveries) > 0
        for delivery in deliveries:
            inbox = self._inboxes.get(delivery.key)
            if inbox is not None:  # else its client has left
                inbox.put(delivery.outcome)
        return len(deliveries) > 0
