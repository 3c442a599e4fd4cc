"""Anthropic's message batches: requests of `/v1/messages` that are run below those of clients that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import FailFast, Field
from pydantic_core import from_json
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine_server.apis.anthropic.routes import anthropic_error
from rnn_engine_server.apis.anthropic.schemas import AnthropicAnswer, AnthropicErrorDetail
from rnn_engine_server.apis.common.owned import OWNER_QUERY, PageEnds, listed_owner, owner_of
from rnn_engine_server.apis.openai.batches import BATCHES, RUNNER
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import query_count, to_json
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import RouteTable, Stream
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.store.batches import Batch, Batches
from rnn_engine_server.store.owners import Cursor

_ENDPOINT = "/v1/messages"
_WINDOW = "24h"
_LIFETIME = 29 * 24 * 3600.0  # seconds for which results are kept, as Anthropic has it
_PREFIX = "msg"  # of an id, before the store's own `batch_...`
_MOST_LISTED = 1000
_LINES = "application/x-jsonl"
_PIECE_BYTES = 1 << 20  # of results, read at a time


class BatchedMessage(RequestBody):
    """One request of a batch."""

    custom_id: str = Field(
        pattern=r"^[a-zA-Z0-9_-]{1,64}$",
        description="An id that no other request of the batch has: 1 to 64 letters, digits, `_` and `-`.",
    )
    params: dict[str, Any] = Field(
        description="The body of a request to `/v1/messages`, without `stream`. If it is wrong, its result is an error."
    )


class MessageBatchRequest(RequestBody):
    """The requests of a new batch."""

    requests: Annotated[list[BatchedMessage], FailFast()] = Field(
        min_length=1, description="The requests, at most `max_batch_lines`."
    )

    def check(self, limits: Limits) -> None:
        limits.check("max_batch_lines", "requests", len(self.requests))
        known = set[str]()
        for number, each in enumerate(self.requests):
            if each.custom_id in known:
                raise InvalidRequestError(
                    f"requests.{number}.custom_id", each.custom_id, "an id that no other request has"
                )
            known.add(each.custom_id)
            if each.params.get("stream"):
                allowed = "false: the answers of a batch are whole"
                raise InvalidRequestError(f"requests.{number}.params.stream", each.params["stream"], allowed)


class MessageBatchCounts(TypedDict):
    """How many requests of a batch have which result. All are `processing` until the batch has ended."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(TypedDict):
    """A batch, as Anthropic describes one. Times are RFC 3339; `results_url` is a path, from when the batch has ended.

    At `archived_at`, 29 days after the end, the results were deleted.
    """

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: str | None
    results_url: str | None


class MessageBatchList(PageEnds):
    """Batches, the newest first. If `has_more`, the last one's id is `after_id` for the next page."""

    data: list[MessageBatch]


class DeletedMessageBatch(TypedDict):
    id: str
    type: Literal["message_batch_deleted"]


class MessageBatchError(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class MessageBatchOutcome(TypedDict):
    """What has become of a request: `message` is its answer if it `succeeded`, `error` says why it `errored`."""

    type: Literal["succeeded", "errored", "canceled", "expired"]
    message: NotRequired[AnthropicAnswer]
    error: NotRequired[MessageBatchError]


class MessageBatchResult(TypedDict):
    """A line of the results of a batch, which are in no certain order."""

    custom_id: str
    result: MessageBatchOutcome


ROUTES = RouteTable(uses_model=False, error_form=anthropic_error)


@ROUTES.post("/v1/messages/batches", scope=Scope.MANAGE)
async def create_batch(call: Call, body: MessageBatchRequest) -> MessageBatch:
    """Run requests of `/v1/messages` below those of clients that wait."""
    owner, store = call.principal.name, call.app[BATCHES]
    batch = await call.app[RUNNER].begin(partial(_create, store, owner, body))
    return _message_batch(store, batch)


async def _create(store: Batches, owner: str, body: MessageBatchRequest) -> Batch:
    """Store the requests as the file of a batch, and the batch."""

    def write() -> None:
        for each in body.requests:
            line = {"custom_id": each.custom_id, "method": "POST", "url": _ENDPOINT, "body": each.params}
            new.write_now(to_json(line) + b"\n")

    async with store.files.create(owner) as new:
        await asyncio.to_thread(write)
        new.describe("message_batch.jsonl", "batch", _LIFETIME)
    assert new.stored is not None
    try:
        return await store.create(
            owner, _ENDPOINT, new.stored.id, _WINDOW, output_lifetime=_LIFETIME, total=len(body.requests)
        )
    except BaseException:
        await store.files.delete(owner, new.stored.id)
        raise


@ROUTES.get(
    "/v1/messages/batches",
    query={
        "limit": f"How many batches to return: 20 by default, at most {_MOST_LISTED}.",
        "after_id": "The id of a batch: return only the batches after it.",
        "before_id": "The id of a batch: return only the batches before it.",
        **OWNER_QUERY,
    },
)
async def list_batches(call: Call) -> MessageBatchList:
    """The message batches of the API key."""
    store = call.app[BATCHES]
    limit = query_count(call, "limit", 20, _MOST_LISTED)
    after, before = (_own_id(call, name) for name in ("after_id", "before_id"))
    try:
        found = await store.page(listed_owner(call), Cursor(limit, after, before), _ENDPOINT)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{error.field}_id", f"{_PREFIX}{error.value}", "the id of a message batch") from None
    page = [_message_batch(store, batch) for batch in found.items]
    return {
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": found.has_more,
    }


def _own_id(call: Call, name: str) -> str | None:
    """Return the store's id of the batch that a query parameter names. Raises InvalidRequestError."""
    given = call.query.get(name)
    if given is not None and not given.startswith(_PREFIX):
        raise InvalidRequestError(name, given, "the id of a message batch")
    return None if given is None else given.removeprefix(_PREFIX)


@ROUTES.get("/v1/messages/batches/{id}")
async def get_batch(call: Call) -> MessageBatch:
    """A message batch, and how far it has come."""
    return _message_batch(call.app[BATCHES], await _batch(call))


@ROUTES.post("/v1/messages/batches/{id}/cancel", scope=Scope.MANAGE)
async def cancel_batch(call: Call) -> MessageBatch:
    """Cancel a message batch. The answers that it has are kept."""
    batch = await call.app[RUNNER].cancel(await _batch(call))
    return _message_batch(call.app[BATCHES], batch)


@ROUTES.delete("/v1/messages/batches/{id}", scope=Scope.MANAGE)
async def delete_batch(call: Call) -> DeletedMessageBatch:
    """Delete a message batch that has ended, and its results."""
    batch = await _batch(call)
    await call.app[BATCHES].delete(batch.owner, batch.id)
    return {"id": call.parameters["id"], "type": "message_batch_deleted"}


@ROUTES.get("/v1/messages/batches/{id}/results", answer=MessageBatchResult, content_type=_LINES)
async def get_results(call: Call) -> Stream:
    """The results of a message batch that has ended, one a line."""
    batch, files = await _batch(call), call.app[BATCHES].files
    if not batch.has_ended:
        raise InvalidRequestError("batch", call.parameters["id"], "a batch that has ended, as its results are")
    try:
        paths = [await files.content(batch.owner, each) for each in batch.result_ids if each is not None]
    except NotFoundError:
        raise NotFoundError(f"message batch {_PREFIX}{batch.id} has ended, and its results are gone") from None
    return Stream(_read_results(paths), content_type=_LINES)


async def _batch(call: Call) -> Batch:
    """Return the batch that the path names. Raises NotFoundError."""
    batch_id = call.parameters["id"]
    with suppress(NotFoundError):
        batch = await call.app[BATCHES].get(owner_of(call), batch_id.removeprefix(_PREFIX))
        if batch.endpoint == _ENDPOINT and batch_id.startswith(_PREFIX):
            return batch
    raise NotFoundError(f"there is no message batch {batch_id[:80]!r}")


_Status: TypeAlias = Literal["in_progress", "canceling", "ended"]


def _message_batch(store: Batches, batch: Batch) -> MessageBatch:
    batch = store.shown(batch)
    status: _Status = "ended" if batch.has_ended else "canceling" if batch.status == "cancelling" else "in_progress"
    ended = batch.entered[batch.status] if batch.has_ended else None
    archived = None if ended is None or ended + _LIFETIME > store.files.now() else ended + _LIFETIME
    results = f"/v1/messages/batches/{_PREFIX}{batch.id}/results"
    return {
        "id": f"{_PREFIX}{batch.id}",
        "type": "message_batch",
        "processing_status": status,
        "request_counts": _counts(batch),
        "created_at": _time(batch.created),
        "expires_at": _time(batch.expires),
        "ended_at": None if ended is None else _time(ended),
        "cancel_initiated_at": _time(batch.entered["cancelling"]) if "cancelling" in batch.entered else None,
        "archived_at": None if archived is None else _time(archived),
        "results_url": results if ended is not None and archived is None else None,
    }


def _counts(batch: Batch) -> MessageBatchCounts:
    counts: MessageBatchCounts = {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    if not batch.has_ended:
        return {**counts, "processing": batch.total}
    cancelled, expired = (batch.not_run if batch.status == status else 0 for status in ("cancelled", "expired"))
    errored = batch.total - batch.completed - batch.not_run
    return {**counts, "succeeded": batch.completed, "errored": errored, "canceled": cancelled, "expired": expired}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


# The results: lines of OpenAI's form in the batch's files, translated as they are read.


async def _read_results(paths: Sequence[Path]) -> AsyncGenerator[bytes, None]:
    for path in paths:
        pieces = _result_pieces(path)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece


def _result_pieces(path: Path) -> Iterator[bytes]:
    """Yield the results that the file at `path` has, in pieces of whole lines."""
    with path.open("rb") as file:
        while lines := file.readlines(_PIECE_BYTES):
            yield b"".join(to_json(_result(from_json(line))) + b"\n" for line in lines)


def _result(line: Mapping[str, Any]) -> MessageBatchResult:
    return {"custom_id": line["custom_id"], "result": _outcome(line)}


def _outcome(line: Mapping[str, Any]) -> MessageBatchOutcome:
    match line:
        case {"response": {"status_code": 200, "body": message}}:
            return {"type": "succeeded", "message": message}
        case {"response": {"body": body, "request_id": request_id}}:
            return {"type": "errored", "error": {"type": "error", "error": body["error"], "request_id": request_id}}
        case {"error": {"code": "batch_cancelled"}}:
            return {"type": "canceled"}
    return {"type": "expired"}
