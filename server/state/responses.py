"""The responses that are kept, so that conversations go on from them and clients read them again."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from rnn_engine.errors import NotFoundError
from server.limits import Limits
from server.schemas.responses.items import Item, KeptItem
from server.state.bounded import BoundedStore, KeptUsage

_KEPT_BYTES = 1024  # that a kept response takes beside its texts


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response, with the items that were new in its request and those of the conversation before these."""

    id: str
    body: bytes  # a JSON object of all but the output
    before: Sequence[KeptItem]
    input: Sequence[KeptItem]
    output: Sequence[KeptItem]
    num_bytes: int  # that it takes where no other response shares its items
    expires: float  # by the clock

    @property
    def conversation(self) -> Sequence[KeptItem]:
        return (*self.before, *self.input, *self.output)

    @property
    def json(self) -> bytes:
        return self.body[:-1] + b',"output":[' + b",".join(item.json for item in self.output) + b"]}"


class ResponseStore:
    """Keeps responses in memory, each for the key that asked for it, within the limits on count, bytes and time.

    Of the key that has the most the oldest give way, so that no key's responses drive out those of another that has
    less. Of the model's work nothing is kept here: the cache of states has it, for as long as there is room, and a
    conversation whose state has given way is run again. May be called by any thread.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._kept: defaultdict[str, BoundedStore[str, KeptResponse]] = defaultdict(self._make_store)  # by owner
        self._response_of: dict[str, str] = {}  # item of an answer -> its response
        self._lock = threading.RLock()

    def _make_store(self) -> BoundedStore[str, KeptResponse]:
        return BoundedStore(self._limits.max_responses, self._limits.max_response_bytes)

    def put(self, owner: str, body: Mapping[str, Any], given: Sequence[KeptItem], before: Sequence[KeptItem]) -> None:
        """Keep a response; `given` are the new items of its request, and `before` those of the earlier conversation."""
        told = to_json({name: value for name, value in body.items() if name != "output"})
        output = tuple(map(KeptItem.of, body["output"]))
        num_bytes = _KEPT_BYTES + len(told) + sum(item.num_bytes for item in (*before, *given, *output))
        expires = self._clock() + self._limits.max_response_seconds
        response = KeptResponse(body["id"], told, tuple(before), tuple(given), output, num_bytes, expires)
        with self._lock:
            self._response_of |= {item.id: response.id for item in output}
            for evicted in self._kept[owner].put(response.id, response, num_bytes):
                self._forget_items(evicted)
            self._drop_expired()
            self._make_room()

    def get(self, owner: str, response_id: str) -> KeptResponse:
        """Return a response. Raises NotFoundError for one that is not there or has another owner."""
        with self._lock:
            self._drop_expired()
            kept = self._kept[owner].get(response_id)
        if kept is None:
            raise NotFoundError(f"response {response_id[:80]!r} is not kept; it never was, or it has given way")
        return kept

    def delete(self, owner: str, response_id: str) -> None:
        """Keep a response no longer; those that go on from it stay. Raises NotFoundError."""
        with self._lock:
            self._forget_items(self.get(owner, response_id))
            self._kept[owner].pop(response_id)

    def resolve(self, owner: str, items: Sequence[Item]) -> list[KeptItem]:
        """Return items as they are kept, with those of kept answers in place of references. Raises NotFoundError."""
        return [
            self._find(owner, item["id"]) if item["type"] == "item_reference" else KeptItem.of(item) for item in items
        ]

    @property
    def usage(self) -> KeptUsage:
        with self._lock:
            return KeptUsage.of_all(self._kept.values())

    def _find(self, owner: str, item_id: str) -> KeptItem:
        response_id = self._response_of.get(item_id)
        if response_id is None:
            raise NotFoundError(f"no response that is kept has an item {item_id[:80]!r}")
        return next(item for item in self.get(owner, response_id).output if item.id == item_id)

    def _drop_expired(self) -> None:
        now = self._clock()
        for store in self._kept.values():
            while (oldest := store.oldest) is not None and oldest.expires <= now:
                self._forget_items(oldest)
                store.pop(oldest.id)

    def _make_room(self) -> None:
        """Drop responses of whoever has the most, until all together are within the limits."""
        stores = self._kept.values()
        while sum(map(len, stores)) > self._limits.max_responses:
            self._forget_items(max(stores, key=len).evict())
        while sum(store.num_bytes for store in stores) > self._limits.max_response_bytes:
            self._forget_items(max(stores, key=lambda store: store.num_bytes).evict())

    def _forget_items(self, response: KeptResponse) -> None:
        for item in response.output:
            del self._response_of[item.id]
