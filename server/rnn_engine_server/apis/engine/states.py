"""Routes to make, list, copy, move, advance, remove, export and upload named states, and to compare any two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.operations.naming import F64, FieldDifference, advance_state, create_state, state_difference
from rnn_engine.types import ModelShape
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import Input, tokens_of
from rnn_engine_server.apis.common.states import (
    ModelNameBody,
    NewStateBody,
    ResolvedState,
    RetentionBody,
    State,
    StateEntry,
    StateRefBody,
    resolve_state,
    state_entry,
)
from rnn_engine_server.apis.openai.files import FILES
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import query_word, receive_file
from rnn_engine_server.core.call import Call, work
from rnn_engine_server.core.handlers import RouteTable, Stream
from rnn_engine_server.core.routing import MODEL_QUERY
from rnn_engine_server.core.schema import RequestBody, Usage
from rnn_engine_states.files.exchange import ExportForm, StateFiles
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import NO_INITIAL_STATE, FrozenState
from rnn_engine_states.named.entry import NamedState, Retention
from rnn_engine_states.named.table import StateListing


class CreateStateRequest(NewStateBody, StateRefBody):
    """A request to run a prompt, and to store the state after it as a named state."""

    prompt: Input = Field(description="What to run: a text or token ids. Empty: keep `state` as it is.")


class ForkStateRequest(RetentionBody):
    """A request to copy a named state to other names. Either all copies are made or none."""

    names: Annotated[list[str], FailFast()] = Field(min_length=1, max_length=1024, description="Names that are free.")


class TakeStateRequest(RetentionBody):
    """A request to move a named state to another owner, another name, or both."""

    name: str | None = Field(default=None, description="The new name. Null: the present one.")


class AdvanceStateRequest(RequestBody):
    """A request to run more tokens from a named state, which then changes."""

    always_strict: ClassVar = True

    input: Input = Field(default="", description="A text or token ids to run. Without any, the state stays as it is.")


class StateEntries(TypedDict):
    """The list of named states.

    `bytes` is the memory that they take, of at most `capacity`; copies share theirs. `default` names the default state.
    """

    object: Literal["list"]
    data: list[StateEntry]
    default: str | None
    bytes: int
    capacity: int


class StateRemoved(TypedDict):
    object: Literal["state.deleted"]
    id: str
    name: str
    deleted: Literal[True]


class CreatedState(TypedDict):
    object: Literal["state.created"]
    state: StateEntry
    usage: Usage


class AdvancedState(TypedDict):
    """The answer to a request to run more tokens from a named state: the state after them."""

    object: Literal["state.advanced"]
    state: StateEntry
    usage: Usage


ROUTES = RouteTable()


@ROUTES.get("/v1/states")
async def list_states(call: Call) -> StateEntries:
    """The states that have names."""
    listing = await call.engine.states.list()
    return _entries(listing.entries, listing)


@ROUTES.post("/v1/states", scope=Scope.MANAGE)
async def create(call: Call, body: CreateStateRequest) -> CreatedState:
    """Run a prompt and name the state after it."""
    engine = call.engine
    resolved = await resolve_state(engine, body.state)
    tokens = await work(call, len(body.prompt), partial(tokens_of, engine, body.prompt))
    call.limits.check("max_prompt_tokens", "prompt", len(tokens))
    named, cost = await create_state(engine, body.name, tokens, body.retention, initial_state=resolved.frozen)
    return {"object": "state.created", "state": state_entry(named), "usage": usage_of([cost])}


@ROUTES.get("/v1/states/{name}")
async def get(call: Call) -> StateEntry:
    """The state of that name or id."""
    return state_entry(await call.engine.states.get(_name(call)))


@ROUTES.delete("/v1/states/{name}", scope=Scope.MANAGE)
async def remove(call: Call) -> StateRemoved:
    """Remove a state."""
    removed = await call.engine.states.delete(_name(call))
    return {"object": "state.deleted", "id": str(removed.id), "name": removed.name, "deleted": True}


@ROUTES.post("/v1/states/{name}/fork", scope=Scope.MANAGE)
async def fork(call: Call, body: ForkStateRequest) -> StateEntries:
    """Copy a state under several names."""
    states = call.engine.states
    forks = await states.fork(_name(call), body.names, body.retention)
    return _entries(forks, await states.list())


@ROUTES.post("/v1/states/{name}/take", scope=Scope.MANAGE)
async def take(call: Call, body: TakeStateRequest) -> StateEntry:
    """Move a state to another owner or name; the old name is gone."""
    states = call.engine.states
    named = await states.get(_name(call))
    return state_entry(await states.move(str(named.id), body.name or named.name, body.retention))


@ROUTES.post("/v1/states/{name}/advance", scope=Scope.MANAGE)
async def advance(call: Call, body: AdvanceStateRequest) -> AdvancedState:
    """Run more tokens from a named state, which the name then stands for.

    Calls for one state run in the order in which they come. `/v1/completions` with `state` and `save_as` of one name
    does so, too, and has log-probabilities.
    """
    engine = call.engine
    tokens = await work(call, len(body.input), partial(tokens_of, engine, body.input))
    call.limits.check("max_prompt_tokens", "input", len(tokens))
    named, cost = await advance_state(engine, _name(call), tokens)
    return {"object": "state.advanced", "state": state_entry(named), "usage": usage_of([cost])}


def _name(call: Call) -> str:
    return call.parameters["name"]


def _entries(entries: Sequence[NamedState], listing: StateListing) -> StateEntries:
    """Return the answer that lists the named states `entries`, with the default state's name and the memory use.

    The memory use is that of all states.
    """
    return {
        "object": "list",
        "data": [state_entry(entry) for entry in entries],
        "default": listing.default,
        "bytes": listing.num_bytes,
        "capacity": listing.capacity,
    }


# Compare two states.


class CompareStatesRequest(ModelNameBody):
    """A request to compare two states, each given in any form that the `state` of a request may have."""

    state: State = Field(
        default=None,
        description="The name or id of a state; `none` for an empty one; a state in ai00's order, as "
        '{"data": ..., "shape": ...}; or {"path": ...}, a file in the folder of states. Null is the default state.',
    )
    other: State = Field(default=None, description="The same for the other state. Null is an empty one.")


class ComparedState(TypedDict):
    """One of the two states that were compared.

    `name` and `id` are null unless the request names the state; `digest` is equal for equal states.
    """

    name: str | None
    id: str | None
    digest: str


class ComparedField(TypedDict):
    """The comparison of one tensor of two states.

    For each layer there is a list: of a number for each head if the tensor is a `matrix`, else of one number. `norms`
    and `other_norms` are Euclidean. `differences` are the norms of the difference over the mean of both norms: 0 if the
    states are equal, 2 if they are opposite or one state is zero.
    """

    name: str
    kind: Literal["shift", "vector", "matrix"]
    norms: list[list[float]]
    other_norms: list[list[float]]
    differences: list[list[float]]


class StateComparison(TypedDict):
    """The difference between two states, tensor by tensor. `fields` are in the order of the model's state tensors."""

    object: Literal["state.comparison"]
    state: ComparedState
    other: ComparedState
    fields: list[ComparedField]


_DIGITS = 6  # significant digits of each number


@ROUTES.post("/v1/states/compare")
async def compare(call: Call, body: CompareStatesRequest) -> StateComparison:
    """How far two states are apart, by field, layer and head."""
    engine = call.engine
    first = await resolve_state(engine, body.state)
    second = await resolve_state(engine, NO_INITIAL_STATE if body.other is None else body.other)
    shape = engine.info.shape
    fields = await work(call, shape.state_bytes, partial(_fields, first, second, shape))
    return {"object": "state.comparison", "state": _compared(first), "other": _compared(second), "fields": fields}


def _fields(first: ResolvedState, second: ResolvedState, shape: ModelShape) -> list[ComparedField]:
    empty = shape.initial_state()
    states = [empty if one.frozen is None else one.frozen.state for one in (first, second)]
    return [_field(difference) for difference in state_difference(states[0], states[1], shape)]


def _field(difference: FieldDifference) -> ComparedField:
    return {
        "name": difference.name,
        "kind": difference.kind.value,
        "norms": _numbers(difference.norms),
        "other_norms": _numbers(difference.other_norms),
        "differences": _numbers(difference.relative),
    }


def _numbers(rows: F64) -> list[list[float]]:
    return [[float(f"{number:.{_DIGITS}g}") for number in row] for row in rows.tolist()]


def _compared(resolved: ResolvedState) -> ComparedState:
    named = resolved.named
    return {
        "name": None if named is None else named.name,
        "id": None if named is None else str(named.id),
        "digest": NO_INITIAL_STATE if resolved.frozen is None else resolved.frozen.digest,
    }


# Export a named state as a file, or upload one.

_ENDINGS: Mapping[ExportForm, str] = {"full": ".state", "tuned": ".safetensors", "pth": ".pth", "prefab": ".cbor"}
_COPIES: Mapping[ExportForm, int] = {"full": 0, "tuned": 1, "pth": 3, "prefab": 3}
"""How many times the values are in memory while a file is made, besides the state's own arrays."""

_FORM_QUERY = {
    **MODEL_QUERY,
    "form": "`full` (everything, for this engine; the default), `tuned` (safetensors with `blocks.N.att.time_state`; "
    "the token shifts are lost), `pth` (the same as torch's file) or `prefab` (ai00's CBOR).",
}
_RETENTION_QUERY = {
    **MODEL_QUERY,
    "owner": "The owner of the lease that keeps the state; without it, the state has a lease of its own.",
    "ttl": "Seconds without use after which the lease ends.",
    "persistent": "`true`: keep the state until it is removed.",
    "shared": "`true`: let every API key start from the state; needs the scope `admin`.",
}
_UPLOAD_QUERY = {
    **_RETENTION_QUERY,
    "any_model": "`true`: take the state although its file says that it was made for another model.",
}


@ROUTES.get(
    "/v1/states/{name}/export",
    answer=None,
    content_type="application/octet-stream",
    query=_FORM_QUERY,
    scope=Scope.MANAGE,
)
async def export(call: Call) -> Stream:
    """A state as a file."""
    engine = call.engine
    _check_query(call, _FORM_QUERY)
    form: ExportForm = query_word(call, "form", get_args(ExportForm), "full")
    named = await engine.states.get(call.parameters["name"])
    call.lease.hold(_COPIES[form] * named.frozen.num_bytes)
    parts = await asyncio.to_thread(lambda: list(engine.state_files.export(form, named.name, named.id, named.frozen)))
    if _COPIES[form] > 0:
        call.lease.hold(sum(map(_size, parts)))

    async def pieces() -> AsyncGenerator[bytes | memoryview, None]:
        for part in parts:
            yield part

    headers = {"Content-Disposition": f'attachment; filename="{named.id}{_ENDINGS[form]}"'}
    return Stream(pieces(), content_type="application/octet-stream", headers=headers, num_bytes=sum(map(_size, parts)))


@ROUTES.put("/v1/states/{name}", query=_UPLOAD_QUERY, scope=Scope.MANAGE)
async def upload(call: Call) -> StateEntry:
    """Upload a state and give it a name.

    The body is the file itself: of any form that can be exported, a `.pth` with a tuned state, or a LoRA if there is
    room for it (--max-loras).
    """
    engine = call.engine
    _check_query(call, _UPLOAD_QUERY)
    name, query = call.parameters["name"], call.query
    persistent, shared, any_model = (_flag(call, flag) for flag in ("persistent", "shared", "any_model"))
    retention = Retention(query.get("owner"), _seconds(query.get("ttl")), persistent, shared)
    await engine.states.check_place(name, retention, 0)
    with call.app[FILES].blobs.temporary("upload") as path:
        await receive_file(call, path)
        loaded, frozen = await asyncio.to_thread(_read, engine.state_files, path, any_model)
    named = await engine.states.put(name, frozen, retention, source="upload", form=loaded.form, key=loaded.id)
    return state_entry(named)


def _read(files: StateFiles, path: Path, any_model: bool) -> tuple[LoadedState, FrozenState]:
    loaded = files.read(path, any_model=any_model)
    return loaded, files.freeze(loaded, "upload")


def _flag(call: Call, name: str) -> bool:
    return query_word(call, name, ("true", "false"), "false") == "true"


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidRequestError("ttl", text, "a number of seconds") from None


def _check_query(call: Call, known: Mapping[str, str]) -> None:
    for name, value in call.query.items():
        if name not in known:
            raise InvalidRequestError(name, value, f"one of the query's fields {', '.join(known)}")


def _size(part: bytes | memoryview) -> int:
    return memoryview(part).nbytes
