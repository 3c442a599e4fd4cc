"""OpenAI's batches: files of requests that are run below those of clients that wait."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine_server.apis.common.owned import Deleted, PageOf, delete_own, own, own_page, page_query
from rnn_engine_server.apis.openai.files import ExpiresAfter
from rnn_engine_server.apis.openai.response_items import METADATA_BOUNDS, Metadata
from rnn_engine_server.apis.openai.response_schemas import ResponseUsage, response_usage
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.routing import AppKey
from rnn_engine_server.core.schema import RequestBody, described
from rnn_engine_server.jobs.runner import BatchRunner
from rnn_engine_server.store.batches import Batch, Batches, BatchStatus, Endpoint

BATCHES = AppKey("batches", Batches)
"""The batches of all API keys."""
RUNNER = AppKey("batch_runner", BatchRunner)

_MOST_LISTED = 100
_ENTERED = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")  # with times


class BatchRequest(RequestBody):
    """A request to run all requests of a file."""

    input_file_id: str = Field(
        description="The id of a file with the purpose `batch`. Each line is an object with a `custom_id` that no "
        "other line has, `method` (`POST`), `url` (the batch's endpoint) and `body`."
    )
    endpoint: Endpoint = Field(description="The route of all requests of the batch.")
    completion_window: str = Field(
        description="How long the batch may take: a whole number with `s`, `m`, `h` or `d`, such as `24h`; at most "
        "`30d`."
    )
    metadata: Metadata = Field(default={}, description=f"Returned with the batch unchanged. {METADATA_BOUNDS}")
    output_expires_after: ExpiresAfter | None = Field(
        default=None, description="When the files of answers and errors are deleted. By default never."
    )


class BatchErrorEntry(TypedDict):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(TypedDict):
    """Why a batch has failed: at most 100 errors."""

    object: Literal["list"]
    data: list[BatchErrorEntry]


class BatchCounts(TypedDict):
    total: int
    completed: int
    failed: int


class BatchUsage(ResponseUsage):
    """The tokens of the answers that a batch has; `cached_tokens` of the input were not run."""


class BatchObject(TypedDict):
    """A batch, as OpenAI describes one. Times are Unix seconds, and null for states that it has not been in.

    `estimated_finish` is when it will have run all requests at its present speed; null if that is not known.
    """

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    estimated_finish: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str]


ROUTES = RouteTable(uses_model=False)


@ROUTES.post("/v1/batches", scope=Scope.MANAGE)
async def create_batch(call: Call, body: BatchRequest) -> BatchObject:
    """Run the requests of a file, below those of clients that wait."""
    owner, store = call.principal.name, call.app[BATCHES]
    lifetime = None if body.output_expires_after is None else body.output_expires_after.seconds
    create = partial(store.create, owner, body.endpoint, body.input_file_id, body.completion_window)
    begin = call.app[RUNNER].begin
    batch = await begin(partial(create, output_lifetime=lifetime, metadata=body.metadata))
    return _batch_object(store, batch)


@ROUTES.get("/v1/batches", query=page_query("batches", 20, _MOST_LISTED))
async def list_batches(call: Call) -> PageOf[BatchObject]:
    """The batches of the API key."""
    store = call.app[BATCHES]
    return await own_page(call, store.page, partial(_batch_object, store), 20, _MOST_LISTED)


@ROUTES.get("/v1/batches/{id}")
async def get_batch(call: Call) -> BatchObject:
    """A batch, and how far it has come."""
    return _batch_object(call.app[BATCHES], await own(call, call.app[BATCHES].get))


@ROUTES.post("/v1/batches/{id}/cancel", scope=Scope.MANAGE)
async def cancel_batch(call: Call) -> BatchObject:
    """Cancel a batch. The answers that it has are kept."""
    batch = await call.app[RUNNER].cancel(await own(call, call.app[BATCHES].get))
    return _batch_object(call.app[BATCHES], batch)


@ROUTES.delete("/v1/batches/{id}", scope=Scope.MANAGE)
async def delete_batch(call: Call) -> Deleted:
    """Delete a batch that has ended, and its files."""
    return await delete_own(call, call.app[BATCHES].delete, "batch")


def _batch_object(store: Batches, batch: Batch) -> BatchObject:
    batch = store.shown(batch)
    entered: dict[str, Any] = {
        f"{name}_at": int(batch.entered[name]) if name in batch.entered else None for name in _ENTERED
    }
    output_id, error_id = batch.result_ids
    finish, errors = store.estimated_finish(batch), [described(BatchErrorEntry, each) for each in batch.errors]
    used = batch.usage
    return described(
        BatchObject,
        batch,
        object="batch",
        errors={"object": "list", "data": errors} if errors else None,
        output_file_id=output_id,
        error_file_id=error_id,
        created_at=int(batch.created),
        expires_at=int(batch.expires),
        estimated_finish=None if finish is None else int(finish),
        request_counts=described(BatchCounts, batch),
        usage=response_usage(used.input_tokens, used.cached_tokens, used.output_tokens, used.reasoning_tokens),
        metadata=dict(batch.metadata),
        **entered,
    )
