"""In-memory stores of the responses and conversations that clients can continue or retrieve later."""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from sys import getsizeof
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from rnn_engine.errors import NotFoundError
from server.apis.openai.response_items import Item, KeptItem, new_item_id
from server.core.bodies import page_ends, query_page
from server.core.kept import BoundedStore, KeptUsage
from server.core.settings import Limits

_CONVERSATION_BYTES = 1024  # that a conversation takes beside its texts


@dataclass(frozen=True)
class StoredConversation:
    """A stored conversation at one moment, with its items. A change makes a new object.

    Item ids are unique.
    """

    id: str
    created: int  # Unix time
    metadata: Mapping[str, str]
    items: tuple[KeptItem, ...] = ()

    @cached_property
    def num_bytes(self) -> int:
        """The number of bytes of memory that the conversation takes."""
        metadata = sum(map(getsizeof, (*self.metadata, *self.metadata.values())))
        return _CONVERSATION_BYTES + metadata + sum(item.num_bytes for item in self.items)

    def item(self, item_id: str) -> KeptItem:
        """Return the conversation's item with this id. Raises NotFoundError if there is none."""
        for item in self.items:
            if item.id == item_id:
                return item
        raise NotFoundError(f"conversation {self.id!r} has no item {item_id[:80]!r}")


class ConversationStore:
    """Stores conversations in memory, separately for each API key, within limits on their number and bytes.

    To make room, the key's conversation that was unused for longest is dropped. States are not stored here: the cache
    has one for the end of a conversation while there is room, and requests continue from that state. May be called by
    any thread.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._kept: defaultdict[str, BoundedStore[str, StoredConversation]] = defaultdict(self._make_store)  # by owner

    def _make_store(self) -> BoundedStore[str, StoredConversation]:
        return BoundedStore(self._limits.max_conversations, self._limits.max_conversation_bytes)

    def create(self, owner: str, items: Sequence[KeptItem], metadata: Mapping[str, str]) -> StoredConversation:
        """Store a new conversation, and return it. Raises InvalidRequestError if it exceeds the limits."""
        made = StoredConversation(f"conv_{uuid.uuid4().hex}", int(time.time()), metadata)
        made = replace(made, items=tuple(_with_own_ids(made, items)))
        with self._lock:
            return self._keep(owner, made)

    def get(self, owner: str, conversation_id: str) -> StoredConversation:
        """Return the conversation with this id. Raises NotFoundError if it is not stored or has another owner."""
        with self._lock:
            return self._find(owner, conversation_id)

    def describe(self, owner: str, conversation_id: str, metadata: Mapping[str, str]) -> StoredConversation:
        """Replace the metadata of a conversation, and return it.

        Raises NotFoundError if it is not stored, and InvalidRequestError if it becomes too large.
        """
        with self._lock:
            described = replace(self._find(owner, conversation_id), metadata=metadata)
            self._check_bytes(described)
            self._put(owner, described)
            return described

    def add(self, owner: str, conversation_id: str, items: Sequence[KeptItem]) -> Sequence[KeptItem]:
        """Append items to a conversation, and return them with their ids.

        Raises NotFoundError if it is not stored, and InvalidRequestError if it becomes too large.
        """
        with self._lock:
            found = self._find(owner, conversation_id)
            added = tuple(_with_own_ids(found, items))
            self._keep(owner, replace(found, items=(*found.items, *added)))
            return added

    def add_answer(self, owner: str, conversation_id: str, items: Sequence[KeptItem]) -> None:
        """Append the items of a request and of its response to a conversation, unless it was deleted meanwhile.

        If the conversation then has more bytes than the limit, it is removed.
        """
        with self._lock:
            found = self._kept[owner].get(conversation_id)
            if found is not None:
                added = tuple(_with_own_ids(found, items))
                self._put(owner, replace(found, items=(*found.items, *added)))

    def remove_item(self, owner: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Remove one item from a conversation, and return the conversation.

        Raises NotFoundError if the conversation or the item does not exist.
        """
        with self._lock:
            found = self._find(owner, conversation_id)
            removed = found.item(item_id)
            left = replace(found, items=tuple(item for item in found.items if item is not removed))
            self._put(owner, left)
            return left

    def delete(self, owner: str, conversation_id: str) -> None:
        """Delete the conversation with this id. Raises NotFoundError if it is not stored or has another owner."""
        with self._lock:
            self._find(owner, conversation_id)
            self._kept[owner].pop(conversation_id)

    @property
    def usage(self) -> KeptUsage:
        with self._lock:
            return KeptUsage.of_all(self._kept.values())

    def _find(self, owner: str, conversation_id: str) -> StoredConversation:
        found = self._kept[owner].use(conversation_id)
        if found is None:
            raise NotFoundError(
                f"conversation {conversation_id[:80]!r} is not kept; it never existed, or it was deleted or dropped "
                "to make room for others"
            )
        return found

    def _keep(self, owner: str, conversation: StoredConversation) -> StoredConversation:
        """Store a conversation that has new items. Raises InvalidRequestError if it exceeds the limits."""
        self._limits.check("max_messages", "items", len(conversation.items))
        self._check_bytes(conversation)
        self._put(owner, conversation)
        return conversation

    def _check_bytes(self, conversation: StoredConversation) -> None:
        self._limits.check("max_conversation_bytes", "items", conversation.num_bytes)

    def _put(self, owner: str, conversation: StoredConversation) -> None:
        """Store a new or changed conversation without checking limits, and evict others of its owner to make room."""
        self._kept[owner].put(conversation.id, conversation, conversation.num_bytes)


def _with_own_ids(conversation: StoredConversation, items: Sequence[KeptItem]) -> Iterator[KeptItem]:
    """Yield `items` for a conversation, with new ids for those whose ids are in use by it or by an earlier item."""
    taken = {item.id for item in conversation.items}
    for item in items:
        yield replace(item, id=new_item_id(item.type)) if item.id in taken else item
        taken.add(item.id)


_RESPONSE_BYTES = 1024  # that a kept response takes beside its texts


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A stored response, with the items of its request (`input`) and those of the conversation before (`before`)."""

    id: str
    body: bytes  # a JSON object of all but the output
    before: Sequence[KeptItem]
    input: Sequence[KeptItem]
    output: Sequence[KeptItem]
    num_bytes: int  # that it takes if no other response shares its items
    expires: float  # by the clock

    @property
    def conversation(self) -> Sequence[KeptItem]:
        return (*self.before, *self.input, *self.output)

    @property
    def json(self) -> bytes:
        return self.body[:-1] + b',"output":[' + b",".join(item.json for item in self.output) + b"]}"


class ResponseStore:
    """Stores responses in memory, separately for each API key, within limits on their number, bytes and age.

    To make room, the oldest responses of the key with the most are dropped. So no key's responses drive out those of a
    key with fewer. States are not stored here: the cache has them while there is room, and a conversation whose state
    was evicted is run again. May be called by any thread.
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
        """Store the response `body` for the API key `owner`.

        `given` are the new items of its request, `before` the conversation's items before these.
        """
        told = to_json({name: value for name, value in body.items() if name != "output"})
        output = tuple(map(KeptItem.of, body["output"]))
        num_bytes = _RESPONSE_BYTES + len(told) + sum(item.num_bytes for item in (*before, *given, *output))
        expires = self._clock() + self._limits.max_response_seconds
        response = KeptResponse(body["id"], told, tuple(before), tuple(given), output, num_bytes, expires)
        with self._lock:
            self._response_of |= {item.id: response.id for item in output}
            for evicted in self._kept[owner].put(response.id, response, num_bytes):
                self._forget_items(evicted)
            self._drop_expired()
            self._make_room()

    def get(self, owner: str, response_id: str) -> KeptResponse:
        """Return the response with this id. Raises NotFoundError if it is not stored or has another owner."""
        with self._lock:
            self._drop_expired()
            kept = self._kept[owner].get(response_id)
        if kept is None:
            raise NotFoundError(
                f"response {response_id[:80]!r} is not kept; it never existed, or it was deleted or dropped to make "
                "room for others"
            )
        return kept

    def delete(self, owner: str, response_id: str) -> None:
        """Delete the response with this id, but not the responses that continue it.

        Raises NotFoundError if it is not stored or has another owner.
        """
        with self._lock:
            self._forget_items(self.get(owner, response_id))
            self._kept[owner].pop(response_id)

    def resolve(self, owner: str, items: Sequence[Item]) -> list[KeptItem]:
        """Return a request's items in the form for storing, with the stored item in place of each reference.

        Raises NotFoundError if a reference's item is not stored.
        """
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
        """Remove responses until all API keys together are within limits: the oldest of the key with the most."""
        stores = self._kept.values()
        while sum(map(len, stores)) > self._limits.max_responses:
            self._forget_items(max(stores, key=len).evict())
        while sum(store.num_bytes for store in stores) > self._limits.max_response_bytes:
            self._forget_items(max(stores, key=lambda store: store.num_bytes).evict())

    def _forget_items(self, response: KeptResponse) -> None:
        for item in response.output:
            del self._response_of[item.id]


# The keys under which the application holds the two stores.

RESPONSES = web.AppKey("responses", ResponseStore)
CONVERSATIONS = web.AppKey("conversations", ConversationStore)

_MOST_ITEMS = 100  # of a page

PAGE_QUERY = {
    "limit": f"How many items to return: 20 by default, at most {_MOST_ITEMS}.",
    "order": "`desc` (the default) returns the last item first, `asc` the first.",
    "after": "The id of an item: return only the items after it.",
}
"""What `item_page` reads."""


def item_page(request: web.Request, items: Sequence[KeptItem]) -> bytes:
    """Return the page of `items` that the query parameters select, as JSON of a list object.

    Raises InvalidRequestError.
    """
    page, has_more = query_page(request, {item.id: item for item in items}, 20, _MOST_ITEMS)
    return item_list(page, has_more=has_more)


def item_list(items: Sequence[KeptItem], *, has_more: bool = False) -> bytes:
    """Return a conversation's items as JSON, in the form of OpenAI's list object."""
    data = b",".join(item.json for item in items)
    return b'{"object":"list","data":[' + data + b"]," + to_json(page_ends(items, has_more=has_more))[1:]
