"""What llama-server tells of its slots and LoRAs."""

from __future__ import annotations

from aiohttp import web

from rnn_engine.errors import InvalidRequestError
from server.http.bodies import json_response
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.schemas.error import ErrorBody
from server.schemas.llama_server.slots import LoraAdapter, SlotEntry

_NO_SLOT_QUERY = {"fail_on_no_slot": "`1`: answer 503 where all slots are taken."}


async def slots(request: web.Request) -> web.Response:
    engine, limits = engine_of(request), request.app[SETTINGS].limits
    flag = request.query.get("fail_on_no_slot", "0")
    if flag not in ("0", "1"):
        raise InvalidRequestError("fail_on_no_slot", flag, "0 or 1")
    active, count, drafts = engine.stats().active, engine.info.num_slots, engine.info.max_draft > 0
    if flag == "1" and active >= count:
        raise web.HTTPServiceUnavailable(text=f"all {count} slots are taken")
    entries: list[SlotEntry] = [
        {"id": slot, "n_ctx": limits.max_prompt_tokens, "speculative": drafts, "is_processing": slot < active}
        for slot in range(count)
    ]
    return json_response(entries)


async def lora_adapters(request: web.Request) -> web.Response:
    entries: list[LoraAdapter] = [
        {"id": number, "path": lora.path.name, "scale": 1.0, "alpha": lora.alpha}
        for number, lora in enumerate(engine_of(request).info.loras)
    ]
    return json_response(entries)


async def scale_adapters(request: web.Request) -> web.Response:  # noqa: ARG001
    raise web.HTTPNotImplemented(
        text="LoRAs are merged into the weights when the model is loaded; start the server with other ones"
    )


ROUTES = (
    Route(
        "GET",
        "/slots",
        slots,
        "A list with the slots of the device, as llama-server has it. Any sequence may take any slot.",
        list[SlotEntry],
        query=_NO_SLOT_QUERY,
        routine=True,
    ),
    Route("GET", "/lora-adapters", lora_adapters, "A list with the LoRAs that are merged.", list[LoraAdapter]),
    Route("POST", "/lora-adapters", scale_adapters, "Refused with 501 and the reason.", ErrorBody),
)
