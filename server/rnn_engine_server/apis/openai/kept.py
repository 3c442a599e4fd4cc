"""The conversations and responses that clients can continue or retrieve later, each by the API key that made it.

States are not stored here: the cache has them while there is room, and requests continue from those.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, TypeVar

from aiohttp import web
from pydantic_core import to_json

from rnn_engine.errors import InvalidRequestError, NotFoundError, OverloadedError
from rnn_engine_server.apis.openai.kept_file import History, Kept, KeptFile, Kind, total_bytes
from rnn_engine_server.apis.openai.response_items import Item, KeptItem, new_item_id
from rnn_engine_server.auth.admission import PRINCIPAL
from rnn_engine_server.core.bodies import hold_more, page_ends, query_page
from rnn_engine_server.core.kept import KeptUsage
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.store.folder import Store

T = TypeVar("T")

_RETRY_SECONDS = 1.0
_OUTPUT_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{4,}")  # of an item: the key of its response, and a number


class ConversationStore:
    """The conversations and responses of all owners. An owner sees its own alone.

    To make room, what its owner has not used for longest is dropped. Thread-safe; methods block for the disk, and raise
    StorageError if the file can't be read or written. A change that raises an error has changed nothing. A change
    outlives the process from the moment when its method returns.
    """

    def __init__(self, files: Store, limits: Limits) -> None:
        """Open the file in the folder of `files`; without a lasting folder, a temporary one that the system deletes.

        A damaged file is renamed and logged. Raises StateError for a file that a later version has written.
        """
        self._files = files
        self._limits = limits
        self._file = KeptFile(files, limits)

    @property
    def usage(self) -> KeptUsage:
        """How many conversations and responses there are, and their bytes."""
        return self._file.usage

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def history_bytes(self, owner: str, kept_id: str) -> int:
        """Return the bytes of what has been said up to the end of a response or conversation. Raises NotFoundError."""
        with self._file.changing():
            kind: Kind = "response" if kept_id.startswith("resp_") else "conversation"
            return self._file.history_bytes(self._file.find(owner, kept_id, kind).turn)

    def events_path(self, response_id: str) -> Path:
        """Return the path of the file with the events of a response."""
        return self._file.events_path(response_id)

    # Responses. The last turn of a response is its output, and the one before has the items of its request. The last
    # turn of a response that has not ended is that with the items of its request.

    def add_response(
        self,
        owner: str,
        response: Mapping[str, Any],
        given: Sequence[KeptItem],
        before: History,
        conversation_id: str | None,
        *,
        keep: bool,
    ) -> None:
        """Add the items of a request and of its response to a conversation, if one is named, and keep the response.

        `given` are the items of the request, `before` the conversation up to then. Without `keep` the response is not
        kept, and neither is one that is too large by itself. Nothing is added to a conversation that was deleted
        meanwhile.
        """
        output = tuple(map(KeptItem.of, response["output"]))
        with self._file.changing():
            if conversation_id is not None:
                self._add_answer(owner, conversation_id, (*given, *output))
            if keep:
                made = self._new_response(owner, response)
                if made.num_bytes + total_bytes((*given, *output)) > self._limits.max_conversation_bytes:
                    self._file.evictions += 1
                    return
                turn = self._file.add_turn(owner, self._file.turn_of(owner, before), given)
                self._file.write(replace(made, turn=self._file.add_turn(owner, turn, output)))

    def queue_response(
        self,
        owner: str,
        response: Mapping[str, Any],
        given: Sequence[KeptItem],
        before: History,
        request: bytes,
        *,
        with_events: bool,
    ) -> Kept:
        """Keep a response that has not begun, with the body of its request, and return it.

        Raises OverloadedError if the owner may have no more of them. Their requests may have `max_body_bytes` in all.
        """
        with self._file.changing():
            unfinished = self.unfinished(owner)
            num_bytes = sum(len(kept.request or b"") for kept in unfinished) + len(request)
            for name, number in (("max_key_background", len(unfinished) + 1), ("max_body_bytes", num_bytes)):
                if number > getattr(self._limits, name):
                    message = f"{len(unfinished)} responses of this API key run in the background, the most ({name})"
                    raise OverloadedError(message, _RETRY_SECONDS)
            turn = self._file.add_turn(owner, self._file.turn_of(owner, before), given)
            events_bytes = 0 if with_events else None
            made = replace(
                self._new_response(owner, response), turn=turn, expires=None, request=request, events_bytes=events_bytes
            )
            self._file.write(made)
            return made

    def finish_response(self, response: Mapping[str, Any], events_bytes: int) -> None:
        """Store how a queued response has ended, and add it to its conversation if it has one and did not fail.

        If it was deleted or has ended before, nothing is stored.
        """
        output = tuple(map(KeptItem.of, response["output"]))
        with self._file.changing():
            old = self._file.select_one(response["id"])
            if old is None or old.request is None:
                return
            if output and (conversation := response["conversation"]) is not None:
                given = self._file.items(old.turn, last=True)
                self._add_answer(old.owner, conversation["id"], (*given, *output))
            new = self._new_response(old.owner, response)
            turn = self._file.add_turn(old.owner, old.turn, output)
            ended = None if old.events_bytes is None else events_bytes
            self._file.write(replace(new, created=old.created, turn=turn, events_bytes=ended), old)

    def response(self, owner: str, response_id: str) -> Kept:
        """Return the response with this id. Raises NotFoundError if it is not stored or has another owner."""
        with self._file.changing():
            return self._file.find(owner, response_id, "response")

    def response_ids(self, owner: str) -> list[str]:
        """Return the ids of the responses of an owner, the oldest first."""
        with self._file.changing():
            return self._file.ids(owner, "response")

    def response_json(self, owner: str, response_id: str) -> bytes:
        """Return a response as JSON. Raises NotFoundError."""
        with self._file.changing():
            found = self._file.find(owner, response_id, "response")
            output = () if found.request is not None else self._file.items(found.turn, last=True)
            return found.body[:-1] + b',"output":[' + b",".join(item.json for item in output) + b"]}"

    def response_input(self, owner: str, response_id: str) -> Sequence[KeptItem]:
        """Return the items that were new in the request for a response. Raises NotFoundError."""
        with self._file.changing():
            return self._file.items(self._input_turn(self._file.find(owner, response_id, "response")), last=True)

    def request_of(self, response_id: str) -> tuple[History, Sequence[KeptItem]]:
        """Return the conversation before a response that has not ended, and the items of its request.

        Raises NotFoundError.
        """
        with self._file.changing():
            found = self._file.select_one(response_id)
            if found is None or found.request is None:
                raise NotFoundError(f"response {response_id!r} has ended or was deleted")
            before = self._file.history(self._file.parent(found.turn))
            return before, self._file.items(found.turn, last=True)

    def after_response(self, owner: str, response_id: str) -> History:
        """Return the conversation up to the end of a response.

        Raises NotFoundError, and InvalidRequestError if the response has not ended.
        """
        with self._file.changing():
            found = self._file.find(owner, response_id, "response")
            if found.request is not None:
                raise InvalidRequestError("previous_response_id", response_id, "a response that has ended")
            return self._file.history(found.turn)

    def delete_response(self, owner: str, response_id: str) -> None:
        """Delete the response with this id, but not the responses that continue it. Raises NotFoundError."""
        with self._file.changing(frees=True):
            self._file.delete(self._file.find(owner, response_id, "response"))

    def unfinished(self, owner: str | None = None) -> list[Kept]:
        """Return the responses of an owner, or of all, that have not ended, the oldest first."""
        if owner is None:
            return self._file.select("request IS NOT NULL ORDER BY created")
        return self._file.select("kind = 'response' AND owner = ? AND request IS NOT NULL ORDER BY created", owner)

    def resolve(self, owner: str, items: Sequence[Item], missing: list[str] | None = None) -> list[KeptItem]:
        """Return a request's items in the form for storing, with the stored item in place of each reference.

        References to what is not stored are left out and added to `missing`; without it, they raise NotFoundError.
        Raises InvalidRequestError if the items are too large.
        """
        outputs: dict[str, Sequence[KeptItem]] = {}  # by response, so that each is read once
        resolved, num_bytes = [], 0
        for item in items:
            if item["type"] != "item_reference":
                resolved.append(KeptItem.of(item))
                continue
            num_outputs = len(outputs)
            try:
                resolved.append(self._find_output(owner, item["id"], outputs))
            except NotFoundError:
                if missing is None:
                    raise
                missing.append(item["id"])
            if len(outputs) > num_outputs:
                num_bytes += total_bytes(next(reversed(outputs.values())))
                self._limits.check("max_body_bytes", "item_reference", num_bytes)
        return resolved

    # Conversations.

    def create(self, owner: str, items: Sequence[KeptItem], metadata: Mapping[str, str]) -> Kept:
        """Store a new conversation, and return it. Raises InvalidRequestError if it exceeds the limits."""
        now = self._files.now()
        made = Kept(f"conv_{uuid.uuid4().hex}", owner, "conversation", now, now, None, to_json(metadata), None)
        with self._file.changing():
            self._file.write(made)
            self._add_items(made, items)
            return made

    def conversation(self, owner: str, conversation_id: str) -> Kept:
        """Return the conversation with this id. Raises NotFoundError if it is not stored or has another owner."""
        with self._file.changing():
            return self._file.find(owner, conversation_id, "conversation")

    def conversation_history(self, owner: str, conversation_id: str) -> History:
        """Return what has been said in a conversation. Raises NotFoundError."""
        with self._file.changing():
            return self._file.history(self._file.find(owner, conversation_id, "conversation").turn)

    def item(self, owner: str, conversation_id: str, item_id: str) -> KeptItem:
        """Return an item of a conversation. Raises NotFoundError if the conversation or the item does not exist."""
        history = self.conversation_history(owner, conversation_id)
        return _item_of(history.items, conversation_id, item_id)

    def describe(self, owner: str, conversation_id: str, metadata: Mapping[str, str]) -> Kept:
        """Replace the metadata of a conversation, and return it. Raises NotFoundError."""
        with self._file.changing():
            found = self._file.find(owner, conversation_id, "conversation")
            described = replace(found, body=to_json(metadata))
            self._file.write(described, found)
            return described

    def add(self, owner: str, conversation_id: str, items: Sequence[KeptItem]) -> Sequence[KeptItem]:
        """Append items to a conversation, and return them with their ids.

        Raises NotFoundError if it is not stored, and InvalidRequestError if it becomes too large.
        """
        with self._file.changing():
            return self._add_items(self._file.find(owner, conversation_id, "conversation"), items)

    def remove_item(self, owner: str, conversation_id: str, item_id: str) -> Kept:
        """Remove one item from a conversation, and return the conversation.

        Raises NotFoundError if the conversation or the item does not exist.
        """
        with self._file.changing():
            found = self._file.find(owner, conversation_id, "conversation")
            items = self._file.items(found.turn)
            removed = _item_of(items, conversation_id, item_id)
            left = self._file.add_turn(owner, None, [item for item in items if item is not removed])
            self._file.write(replace(found, turn=left), found)
            return found

    def delete(self, owner: str, conversation_id: str) -> None:
        """Delete the conversation with this id. Raises NotFoundError if it is not stored or has another owner."""
        with self._file.changing(frees=True):
            self._file.delete(self._file.find(owner, conversation_id, "conversation"))

    def _add_items(self, conversation: Kept, items: Sequence[KeptItem]) -> Sequence[KeptItem]:
        before = self._file.items(conversation.turn)
        added = tuple(_with_own_ids(before, items))
        self._limits.check("max_messages", "items", len(before) + len(added))
        self._limits.check("max_conversation_bytes", "items", conversation.num_bytes + total_bytes((*before, *added)))
        self._append(conversation, added)
        return added

    def _add_answer(self, owner: str, conversation_id: str, items: Sequence[KeptItem]) -> None:
        """Append items to a conversation, unless it was deleted. If it becomes too large, it is dropped."""
        found = self._file.select_one(conversation_id)
        if found is None or found.owner != owner:
            return
        before = self._file.items(found.turn)
        if found.num_bytes + total_bytes((*before, *items)) > self._limits.max_conversation_bytes:
            self._file.delete(found)
            self._file.evictions += 1
        else:
            self._append(found, tuple(_with_own_ids(before, items)))

    def _append(self, conversation: Kept, items: Sequence[KeptItem]) -> None:
        if items:
            turn = self._file.add_turn(conversation.owner, conversation.turn, items)
            self._file.write(replace(conversation, turn=turn, used=self._files.now()), conversation)

    def _new_response(self, owner: str, response: Mapping[str, Any]) -> Kept:
        body = to_json({name: value for name, value in response.items() if name != "output"})
        now = self._files.now()
        return Kept(response["id"], owner, "response", now, now, now + self._limits.max_response_seconds, body, None)

    def _find_output(self, owner: str, item_id: str, outputs: dict[str, Sequence[KeptItem]]) -> KeptItem:
        """Return an item of the output of a response. Reads it into `outputs` if it is not there."""
        match = _OUTPUT_ID.fullmatch(item_id)
        response_id = "" if match is None else f"resp_{match[1]}"
        with suppress(NotFoundError):
            if response_id not in outputs:
                with self._file.changing():
                    found = self._file.find(owner, response_id, "response")
                    outputs[response_id] = self._file.items(found.turn, last=True)
            return _item_of(outputs[response_id], response_id, item_id)
        raise NotFoundError(f"no response that is kept has an item {item_id[:80]!r}")

    def _input_turn(self, response: Kept) -> int | None:
        return response.turn if response.request is not None else self._file.parent(response.turn)


def _item_of(items: Sequence[KeptItem], kept_id: str, item_id: str) -> KeptItem:
    for item in items:
        if item.id == item_id:
            return item
    raise NotFoundError(f"{kept_id!r} has no item {item_id[:80]!r}")


def _with_own_ids(before: Sequence[KeptItem], items: Sequence[KeptItem]) -> Iterator[KeptItem]:
    """Yield `items`. Those whose ids an item of `before` or an earlier one has, get new ids."""
    taken = {item.id for item in before}
    for item in items:
        yield replace(item, id=new_item_id(item.type)) if item.id in taken else item
        taken.add(item.id)


CONVERSATIONS = web.AppKey("conversations", ConversationStore)
"""The conversations and responses of all API keys."""


async def hold_history(request: web.Request, kept_id: str) -> None:
    """Count what has been said in a response or conversation in the memory of a request, which is about to read it.

    Raises NotFoundError, OverloadedError if requests hold too much memory, and an aiohttp exception if it is too large.
    """
    size = await asyncio.to_thread(request.app[CONVERSATIONS].history_bytes, request[PRINCIPAL].name, kept_id)
    hold_more(request, "the conversation", size)


async def call_for_path(request: web.Request, method: Callable[Concatenate[str, str, ...], T], *values: object) -> T:
    """Call a method of the store, on a thread, with the request's owner, the id in its path, and `values`."""
    return await asyncio.to_thread(method, request[PRINCIPAL].name, request.match_info["id"], *values)


MOST_ITEMS = 100  # of a page

PAGE_QUERY = {
    "limit": f"How many items to return: 20 by default, at most {MOST_ITEMS}.",
    "order": "`desc` (the default) returns the last item first, `asc` the first.",
    "after": "The id of an item: return only the items after it.",
}
"""What `item_page` reads."""


def item_page(request: web.Request, items: Sequence[KeptItem]) -> bytes:
    """Return the page of `items` that the query parameters select, as JSON of a list object.

    Raises InvalidRequestError.
    """
    page, has_more = query_page(request, {item.id: item for item in items}, 20, MOST_ITEMS)
    return item_list(page, has_more=has_more)


def item_list(items: Sequence[KeptItem], *, has_more: bool = False) -> bytes:
    """Return a conversation's items as JSON, in the form of OpenAI's list object."""
    data = b",".join(item.json for item in items)
    return b'{"object":"list","data":[' + data + b"]," + to_json(page_ends(items, has_more=has_more))[1:]
