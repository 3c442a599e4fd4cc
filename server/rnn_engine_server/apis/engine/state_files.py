"""Routes that export a named state as a file, or upload one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import get_args

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.apis.common.states import StateEntry, state_entry
from rnn_engine_server.apis.openai.files import FILES
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import query_word, receive_file
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import RouteTable, Stream
from rnn_engine_server.core.routing import MODEL_QUERY
from rnn_engine_states.files.exchange import ExportForm, StateFiles
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import FrozenState
from rnn_engine_states.named.entry import NamedState, Retention

_ENDINGS: Mapping[ExportForm, str] = {
    "full": ".state",
    "tuned": ".safetensors",
    "pth": ".pth",
    "prefab": ".cbor",
}
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


ROUTES = RouteTable()


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
    parts = await asyncio.to_thread(_export, engine.state_files, form, named)
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


def _export(files: StateFiles, form: ExportForm, named: NamedState) -> list[bytes | memoryview]:
    return list(files.export(form, named.name, named.id, named.frozen))


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
