"""llama-server's routes for slots and LoRAs: list them, and save and restore states under a slot's number."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import replace
from typing import NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.naming import create_state
from rnn_engine.requests import GenerateRequest
from rnn_engine_server.apis.common.generation import check_slot, slot_key
from rnn_engine_server.apis.common.states import ModelNameBody
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import query_word
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import RefusalError
from rnn_engine_server.core.handlers import Encoded, RouteTable
from rnn_engine_server.core.kept import SLOT_PROMPTS
from rnn_engine_server.core.schema import ErrorBody
from rnn_engine_states.frozen import NO_INITIAL_STATE
from rnn_engine_states.named.entry import NamedState, Retention
from rnn_engine_states.tokens import TOKEN_BYTES, unpack


class SlotEntry(TypedDict):
    """The status of one slot of the device.

    `n_ctx` is the most tokens of a prompt, since a state has no context of a fixed length. `speculative` is true if the
    server drafts tokens ahead.
    """

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


class LoraAdapter(TypedDict):
    """A LoRA that was merged into the weights when the model was loaded.

    `alpha` is its strength, null for the one that its file gives.
    """

    id: int
    path: str
    scale: float
    alpha: float | None


class SlotActionRequest(ModelNameBody):
    """A request to save, restore or erase a slot. `filename` is the name of the state."""

    filename: str | None = Field(
        default=None, min_length=1, description="The name of the state; only `erase` does without one."
    )


class SlotTimings(TypedDict):
    save_ms: NotRequired[float]
    restore_ms: NotRequired[float]


class SlotAction(TypedDict):
    """The result of saving, restoring or erasing a slot.

    `n_saved`, `n_restored` and `n_erased` count tokens, `n_written` and `n_read` bytes of the state.
    """

    id_slot: int
    filename: NotRequired[str]
    n_saved: NotRequired[int]
    n_written: NotRequired[int]
    n_restored: NotRequired[int]
    n_read: NotRequired[int]
    n_erased: NotRequired[int]
    timings: NotRequired[SlotTimings]


# Save, restore and erase slots. A saved slot is the named state after the last prompt sent with the slot's number.

_ACTIONS = ("save", "restore", "erase")


ROUTES = RouteTable()


@ROUTES.post("/slots/{id}", query={"action": "`save`, `restore` or `erase`."}, scope=Scope.MANAGE)
async def slot_action(call: Call, body: SlotActionRequest) -> SlotAction:
    """Act on the last prompt that was sent with this `id_slot`.

    `save` gives the state after it a name, and `erase` forgets the prompt. After `restore`, prompts that begin like a
    saved one start from its state.
    """
    action = call.query.get("action", "")
    if action not in _ACTIONS:
        raise InvalidRequestError("action", action, f"one of {', '.join(_ACTIONS)}")
    engine = call.engine
    slot = _slot(call, engine)
    default = await engine.states.default()
    if action == "erase":
        erased = call.app[SLOT_PROMPTS].pop(slot_key(call, default, slot)) or b""
        return {"id_slot": slot, "n_erased": len(erased) // TOKEN_BYTES}
    if body.filename is None:
        raise InvalidRequestError("filename", None, f"the name of the state to {action}")
    act = _save if action == "save" else _restore
    return await act(call, default, slot, body.filename)


async def _save(call: Call, default: NamedState | None, slot: int, name: str) -> SlotAction:
    begun, engine, prompts = time.monotonic(), call.engine, call.app[SLOT_PROMPTS]
    packed = prompts.get(slot_key(call, default, slot))
    if packed is None:
        raise InvalidRequestError(
            "id_slot", slot, "the id_slot of a prompt that was sent last from the default state, and not erased since"
        )
    retention = Retention(persistent="states" in engine.info.folders)
    start = None if default is None else default.frozen
    tokens = unpack(packed)
    named, _ = await create_state(engine, name, tokens, retention, initial_state=start, with_tokens=True)
    key = slot_key(call, default, named.frozen.digest)
    prompts.put(key, packed, len(packed))  # a shared store does not keep the tokens
    return {
        "id_slot": slot,
        "filename": name,
        "n_saved": len(tokens),
        "n_written": named.frozen.num_bytes,
        "timings": {"save_ms": 1000 * (time.monotonic() - begun)},
    }


async def _restore(call: Call, default: NamedState | None, slot: int, name: str) -> SlotAction:
    """Restore the prompt that was saved under `name` to a slot's number, and give its state to the cache.

    So later prompts that begin alike continue from that state. Raises InvalidRequestError if the state was not saved
    from a slot, or from another default state than the present one.
    """
    begun, engine, prompts = time.monotonic(), call.engine, call.app[SLOT_PROMPTS]
    frozen = (await engine.states.get(name)).frozen
    root = NO_INITIAL_STATE if default is None else default.frozen.digest
    packed = prompts.get(slot_key(call, default, frozen.digest))
    if frozen.path is not None and frozen.path.root == root:
        packed = frozen.path.tokens
    if packed is None or frozen.logits is None:
        allowed = "a state that was saved from a slot, with the default state that there is now"
        raise InvalidRequestError("filename", name, allowed)
    tokens = unpack(packed)
    start = replace(frozen.for_request, root=root, taken_in=len(tokens))
    async with aclosing(engine.generate(GenerateRequest(tokens, initial_state=start, max_tokens=0))) as events:
        async for _ in events:
            pass
    prompts.put(slot_key(call, default, slot), packed, len(packed))
    return {
        "id_slot": slot,
        "filename": name,
        "n_restored": len(tokens),
        "n_read": frozen.num_bytes,
        "timings": {"restore_ms": 1000 * (time.monotonic() - begun)},
    }


def _slot(call: Call, engine: EngineLike) -> int:
    text = call.parameters["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequestError("id", text, "the number of a slot")
    check_slot(engine, "id", int(text))
    return int(text)


_NO_SLOT_QUERY = {"fail_on_no_slot": "`1`: answer 503 if all slots are taken."}


@ROUTES.get("/slots", query=_NO_SLOT_QUERY, routine=True)
async def slots(call: Call) -> list[SlotEntry]:
    """A list with the slots of the device, as llama-server has it. Any sequence may take any slot."""
    engine, limits = call.engine, call.limits
    flag = query_word(call, "fail_on_no_slot", ("0", "1"), "0")
    held, count, drafts = {use.slot for use in engine.slot_uses()}, engine.info.num_slots, engine.info.max_draft > 0
    if flag == "1" and len(held) >= count:
        raise RefusalError(503, f"all {count} slots are taken")
    return [
        {"id": slot, "n_ctx": limits.max_prompt_tokens, "speculative": drafts, "is_processing": slot in held}
        for slot in range(count)
    ]


@ROUTES.get("/lora-adapters")
async def lora_adapters(call: Call) -> list[LoraAdapter]:
    """A list with the LoRAs that are merged."""
    return [
        {"id": number, "path": lora.path.name, "scale": 1.0, "alpha": lora.alpha}
        for number, lora in enumerate(call.engine.info.loras)
    ]


@ROUTES.post("/lora-adapters", answer=ErrorBody)
async def scale_adapters(call: Call) -> Encoded:  # noqa: ARG001
    """Refused with 501 and the reason."""
    raise RefusalError(
        501, "a LoRA is a state, PUT /v1/states/NAME with --max-loras, or merged when the model is loaded"
    )
