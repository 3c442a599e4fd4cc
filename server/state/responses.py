"""The responses that are kept, so that conversations go on from them and clients read them again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rnn_engine.errors import NotFoundError
from server.limits import Limits
from server.schemas.responses.items import Item, items_bytes


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response, with the items that were new in its request and those of its whole conversation."""

    body: Mapping[str, Any]
    input: Sequence[Item]
    conversation: Sequence[Item]
    num_bytes: int  # about, of the texts of the conversation
    owner: str  # the name of the API key
    expires: float  # by the clock


class ResponseStore:
    """Keeps responses in memory, each for the key that asked for it, within the limits on count, bytes and time.

    The oldest give way. Of the model's work nothing is kept here: the cache of states has it, for as long as there is
    room, and a conversation whose state has given way is run again. May be called by any thread.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._kept: OrderedDict[str, KeptResponse] = OrderedDict()  # the oldest first
        self._response_of: dict[str, str] = {}  # item of an answer -> its response
        self._num_bytes = 0
        self._lock = threading.RLock()

    def put(self, owner: str, body: Mapping[str, Any], given: Sequence[Item], before: Sequence[Item]) -> None:
        """Keep a response; `given` are the new items of its request, and `before` those of the earlier conversation."""
        conversation = (*before, *given, *body["output"])
        num_bytes = items_bytes(conversation)
        expires = self._clock() + self._limits.max_response_seconds
        with self._lock:
            self._kept[body["id"]] = KeptResponse(body, given, conversation, num_bytes, owner, expires)
            self._response_of |= {item["id"]: body["id"] for item in body["output"]}
            self._num_bytes += num_bytes
            self._evict()

    def get(self, owner: str, response_id: str) -> KeptResponse:
        """Return a response. Raises NotFoundError for one that is not there or has another owner."""
        with self._lock:
            self._evict()
            kept = self._kept.get(response_id)
        if kept is None or kept.owner != owner:
            raise NotFoundError(f"response {response_id[:80]!r} is not kept; it never was, or it has given way")
        return kept

    def delete(self, owner: str, response_id: str) -> None:
        """Keep a response no longer; those that go on from it stay. Raises NotFoundError."""
        with self._lock:
            self.get(owner, response_id)
            self._drop(response_id)

    def resolve(self, owner: str, items: Sequence[Item]) -> list[Item]:
        """Return items with those of kept answers in place of references. Raises NotFoundError."""
        return [self._find(owner, item["id"]) if item["type"] == "item_reference" else item for item in items]

    def _find(self, owner: str, item_id: str) -> Item:
        response_id = self._response_of.get(item_id)
        if response_id is None:
            raise NotFoundError(f"no response that is kept has an item {item_id[:80]!r}")
        kept = self.get(owner, response_id)
        return next(item for item in kept.body["output"] if item["id"] == item_id)

    def _evict(self) -> None:
        """Drop what has expired, and the oldest beyond the limits."""
        while self._kept:
            response_id, oldest = next(iter(self._kept.items()))
            too_many = len(self._kept) > self._limits.max_responses
            too_large = self._num_bytes > self._limits.max_response_bytes
            if not (too_many or too_large or oldest.expires <= self._clock()):
                return
            self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        kept = self._kept.pop(response_id)
        self._num_bytes -= kept.num_bytes
        for item in kept.body["output"]:
            del self._response_of[item["id"]]
