"""Slots saved, restored and erased: the state after the last prompt that was sent with a slot's number, by name."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

from aiohttp import web

from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.naming import create_state, run_tokens
from rnn_engine.requests import GenerateRequest
from server.doors.scopes import Scope
from server.http.bodies import json_response, read_body
from server.http.context import PRINCIPAL, SLOT_PROMPTS, engine_of
from server.http.routing import Route
from server.http.work import work
from server.schemas.generation import GenerationBody
from server.schemas.llama_server.slots import SlotAction, SlotActionRequest
from server.state.slots import pack
from states.named.entry import Retention

_ACTIONS = ("save", "restore", "erase")


async def note_slot(
    request: web.Request, engine: EngineLike, body: GenerationBody, calls: Sequence[GenerateRequest]
) -> None:
    """Note the prompt of a generation under the slot's number that it names, if any.

    One with a `cache_salt` is not noted, for others with the same API key may not go on from it.
    """
    slot = body.id_slot
    if slot is None or slot < 0:
        return
    _check_slot(engine, "id_slot", slot)
    if calls[0].initial_state is None and body.cache_salt is None:  # a state's prompt does not lead to its end alone
        prompt = calls[0].prompt
        packed = await work(request, len(prompt), lambda: pack(prompt))
        request.app[SLOT_PROMPTS].put(_slot_key(request, engine, slot), packed)


async def slot_action(request: web.Request) -> web.Response:
    action = request.query.get("action", "")
    if action not in _ACTIONS:
        raise InvalidRequestError("action", action, f"one of {', '.join(_ACTIONS)}")
    body = await read_body(request, SlotActionRequest)
    engine = engine_of(request)
    slot = _slot(request, engine)
    if action == "erase":
        erased = request.app[SLOT_PROMPTS].pop(_slot_key(request, engine, slot))
        return json_response({"id_slot": slot, "n_erased": erased})
    if body.filename is None:
        raise InvalidRequestError("filename", None, f"the name of the state to {action}")
    act = _save if action == "save" else _restore
    return json_response(await act(request, engine, slot, body.filename))


async def _save(request: web.Request, engine: EngineLike, slot: int, name: str) -> SlotAction:
    begun, prompts = time.monotonic(), request.app[SLOT_PROMPTS]
    tokens = prompts.get(_slot_key(request, engine, slot))
    if tokens is None:
        raise InvalidRequestError("id_slot", slot, "a number with which a prompt was sent since it was erased")
    retention = Retention(persistent="states" in engine.info.folders)
    named, _ = await create_state(engine, name, tokens, retention)
    prompts.put(_name_key(request, engine, named.frozen.digest), tokens)
    return {
        "id_slot": slot,
        "filename": name,
        "n_saved": len(tokens),
        "n_written": named.frozen.num_bytes,
        "timings": {"save_ms": 1000 * (time.monotonic() - begun)},
    }


async def _restore(request: web.Request, engine: EngineLike, slot: int, name: str) -> SlotAction:
    """See to it that prompts that begin as the saved one are continued and not run anew."""
    begun, prompts = time.monotonic(), request.app[SLOT_PROMPTS]
    frozen = (await engine.states.get(name)).frozen
    tokens = prompts.get(_name_key(request, engine, frozen.digest))
    if tokens is not None:
        await run_tokens(engine, None, tokens)  # from the cache, or into it
        prompts.put(_slot_key(request, engine, slot), tokens)
    return {
        "id_slot": slot,
        "filename": name,
        "n_restored": 0 if tokens is None else len(tokens),
        "n_read": frozen.num_bytes,
        "timings": {"restore_ms": 1000 * (time.monotonic() - begun)},
    }


def _slot(request: web.Request, engine: EngineLike) -> int:
    text = request.match_info["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequestError("id", text, "the number of a slot")
    _check_slot(engine, "id", int(text))
    return int(text)


def _check_slot(engine: EngineLike, field: str, slot: int) -> None:
    if slot >= engine.info.num_slots:
        raise InvalidRequestError(field, slot, f"a slot from 0 to {engine.info.num_slots - 1}")


def _slot_key(request: web.Request, engine: EngineLike, slot: int) -> Hashable:
    return request[PRINCIPAL].name, engine.info.model, slot


def _name_key(request: web.Request, engine: EngineLike, digest: str) -> Hashable:
    return request[PRINCIPAL].name, engine.info.model, digest


ROUTES = (
    Route(
        "POST",
        "/slots/{id}",
        slot_action,
        "Name the state after the last prompt that was sent with this `id_slot` (`save`), see to it that prompts that "
        "begin as a saved one need not run again (`restore`), or forget the prompt (`erase`).",
        SlotAction,
        request=SlotActionRequest,
        query={"action": "`save`, `restore` or `erase`."},
        scope=Scope.MANAGE,
    ),
)
