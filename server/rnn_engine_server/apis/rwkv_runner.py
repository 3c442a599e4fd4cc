"""RWKV-Runner's routes: its status, another model in place of the default one, and settings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.hub import model_name
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.routing import SETTINGS
from rnn_engine_server.core.schema import Only, RequestBody
from rnn_engine_server.models.orders import LoadOrder, ModelFolder, folder_of
from rnn_engine_server.models.registry import MODELS, ModelStatus

_STATUSES: dict[ModelStatus, Literal[0, 2, 3]] = {"loaded": 3, "loading": 2, "unloading": 0, "unloaded": 0}


class SwitchModelRequest(RequestBody):
    """A model to load in place of the default model. A file that is served, or was, is loaded with the name, LoRAs,
    states and reranker that it had. `strategy` has no effect: the server's options count."""

    always_strict: ClassVar = True

    ignored: ClassVar = frozenset({"customCuda", "strategy"})
    neutral: ClassVar = {"deploy": Only((False,), because="API keys with scopes say who may load models")}

    model: str = Field(description="The path of a file in the folder of models; empty to unload the default model.")
    tokenizer: str | None = Field(
        default=None,
        description="The path of a tokenizer in the folder of models; null or empty: the one that the model had, or as "
        "the server chooses.",
    )


class UpdateConfigRequest(RequestBody):
    """Settings for all later requests. They are left out, since each request has its own, and the answer's header
    X-Left-Out names them."""


class RunnerStatus(TypedDict):
    """The state of the default model: 0 if it is not loaded, 2 while it is being loaded, and 3 if it is loaded."""

    status: Literal[0, 2, 3]
    pid: int
    device_name: str


class RunnerError(TypedDict):
    detail: str


def runner_error(failure: Failure) -> tuple[int, RunnerError]:
    """Return the HTTP status and the body of an error in RWKV-Runner's form."""
    return failure.status, {"detail": failure.message}


ROUTES = RouteTable(uses_model=False, error_form=runner_error)


@ROUTES.post("/switch-model", scope=Scope.ADMIN)
async def switch_model(call: Call, body: SwitchModelRequest) -> str:
    """Load a model from the folder of models (`--model-folder`) in place of the default model, as RWKV-Runner does."""
    models = call.app[MODELS]
    if body.model:
        orders = [model.order for model in models]
        await models.replace_default(await asyncio.to_thread(_order, body, folder_of(call.app[SETTINGS]), orders))
    else:
        await models.default.unload(withdraw=True)
    return "success"


def _order(body: SwitchModelRequest, folder: ModelFolder, known: Sequence[LoadOrder]) -> LoadOrder:
    """Return the order to load the file that `body` names: that of `known` for the same file, or a new one."""
    path = folder.find(body.model)
    tokenizer = str(folder.find(body.tokenizer)) if body.tokenizer else None
    new = LoadOrder(model_name(path), path)
    order = next((order for order in known if order.path.resolve() == path.resolve()), new)
    return replace(order, tokenizer=tokenizer or order.tokenizer)


@ROUTES.post("/update-config")
async def update_config(_call: Call, _body: UpdateConfigRequest) -> str:
    """Accepted for clients of RWKV-Runner; nothing changes, since each request has its own settings."""
    return "success"


@ROUTES.get("/status", routine=True)
async def status(call: Call) -> RunnerStatus:
    """The state of the default model, in RWKV-Runner's form."""
    model = call.app[MODELS].default
    return {
        "status": _STATUSES[model.status],
        "pid": os.getpid(),
        "device_name": "" if model.info is None else model.info.device,
    }
