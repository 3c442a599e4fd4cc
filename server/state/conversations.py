"""The conversations that clients keep at the server, to which responses add what is said."""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from sys import getsizeof

from rnn_engine.errors import NotFoundError
from server.limits import Limits
from server.schemas.responses.items import KeptItem, new_item_id
from server.state.bounded import BoundedStore, KeptUsage

_KEPT_BYTES = 1024  # that a conversation takes beside its texts


@dataclass(frozen=True)
class Conversation:
    """A conversation as it is at one moment. Each item has an id of its own."""

    id: str
    created: int  # Unix time
    metadata: Mapping[str, str]
    items: tuple[KeptItem, ...] = ()

    @cached_property
    def num_bytes(self) -> int:
        """How much memory it takes."""
        metadata = sum(map(getsizeof, (*self.metadata, *self.metadata.values())))
        return _KEPT_BYTES + metadata + sum(item.num_bytes for item in self.items)

    def item(self, item_id: str) -> KeptItem:
        """Return one item. Raises NotFoundError."""
        for item in self.items:
            if item.id == item_id:
                return item
        raise NotFoundError(f"conversation {self.id!r} has no item {item_id[:80]!r}")


class ConversationStore:
    """Keeps conversations in memory for each API key by itself, within the limits on their number and bytes.

    Of a key's conversations the one that was unused for longest gives way. Of the model's work nothing is kept here:
    the cache of states has one state for the end of a conversation, for as long as there is room, and goes on from it.
    May be called by any thread.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._kept: defaultdict[str, BoundedStore[str, Conversation]] = defaultdict(self._make_store)  # by owner

    def _make_store(self) -> BoundedStore[str, Conversation]:
        return BoundedStore(self._limits.max_conversations, self._limits.max_conversation_bytes)

    def create(self, owner: str, items: Sequence[KeptItem], metadata: Mapping[str, str]) -> Conversation:
        """Keep a new conversation. Raises InvalidRequestError for one that is beyond the limits."""
        made = Conversation(f"conv_{uuid.uuid4().hex}", int(time.time()), metadata)
        made = replace(made, items=tuple(_with_own_ids(made, items)))
        with self._lock:
            return self._keep(owner, made)

    def get(self, owner: str, conversation_id: str) -> Conversation:
        """Return a conversation. Raises NotFoundError for one that is not there or has another owner."""
        with self._lock:
            return self._find(owner, conversation_id)

    def describe(self, owner: str, conversation_id: str, metadata: Mapping[str, str]) -> Conversation:
        """Put `metadata` in place of what a conversation has. Raises NotFoundError or InvalidRequestError."""
        with self._lock:
            return self._keep(owner, replace(self._find(owner, conversation_id), metadata=metadata))

    def add(self, owner: str, conversation_id: str, items: Sequence[KeptItem]) -> Sequence[KeptItem]:
        """Add items at the end; return them with their ids. Raises NotFoundError or InvalidRequestError."""
        with self._lock:
            found = self._find(owner, conversation_id)
            added = tuple(_with_own_ids(found, items))
            self._keep(owner, replace(found, items=(*found.items, *added)))
            return added

    def add_answer(self, owner: str, conversation_id: str, items: Sequence[KeptItem]) -> None:
        """Add what was asked of a response and what it said, unless the conversation was deleted meanwhile.

        A conversation that is beyond the limits by then gives way.
        """
        with self._lock:
            found = self._kept[owner].get(conversation_id)
            if found is not None:
                added = tuple(_with_own_ids(found, items))
                self._put(owner, replace(found, items=(*found.items, *added)))

    def remove_item(self, owner: str, conversation_id: str, item_id: str) -> Conversation:
        """Remove one item; return what is left. Raises NotFoundError."""
        with self._lock:
            found = self._find(owner, conversation_id)
            removed = found.item(item_id)
            left = tuple(item for item in found.items if item is not removed)
            return self._keep(owner, replace(found, items=left))

    def delete(self, owner: str, conversation_id: str) -> None:
        """Keep a conversation no longer. Raises NotFoundError."""
        with self._lock:
            self._find(owner, conversation_id)
            self._kept[owner].pop(conversation_id)

    @property
    def usage(self) -> KeptUsage:
        with self._lock:
            return KeptUsage.of_all(self._kept.values())

    def _find(self, owner: str, conversation_id: str) -> Conversation:
        found = self._kept[owner].use(conversation_id)
        if found is None:
            raise NotFoundError(f"conversation {conversation_id[:80]!r} is not kept; it never was, or it has given way")
        return found

    def _keep(self, owner: str, conversation: Conversation) -> Conversation:
        """Keep a new or changed conversation. Raises InvalidRequestError for one that is beyond the limits."""
        self._limits.check("max_messages", "items", len(conversation.items))
        self._limits.check("max_conversation_bytes", "items", conversation.num_bytes)
        self._put(owner, conversation)
        return conversation

    def _put(self, owner: str, conversation: Conversation) -> None:
        """Keep a new or changed conversation, for which others of its owner give way."""
        self._kept[owner].put(conversation.id, conversation, conversation.num_bytes)


def _with_own_ids(conversation: Conversation, items: Sequence[KeptItem]) -> Iterator[KeptItem]:
    """Yield items with new ids in place of those that the conversation has already."""
    taken = {item.id for item in conversation.items}
    for item in items:
        yield replace(item, id=new_item_id(item.type)) if item.id in taken else item
        taken.add(item.id)
