"""Facts of the server: its limits, and what requests mean where they say nothing."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version

from aiohttp import web

from rnn_engine.sampling.params import PARAMETERS
from server.http.bodies import json_response
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.schemas.generation import GenerationBody
from server.schemas.props import Props


async def props(request: web.Request) -> web.Response:
    engine, settings = engine_of(request), request.app[SETTINGS]
    info = engine.info
    defaults = {parameter.name: parameter.default for parameter in PARAMETERS}
    body: Props = {
        "model_path": info.model,
        "model_alias": info.model,
        "build_info": f"rnn-engine {version('rnn-engine')}",
        "modalities": {"vision": False, "audio": False},
        "bos_token": "",
        "eos_token": engine.detokenize([0]).decode(errors="replace"),
        "is_sleeping": False,
        "total_slots": info.num_slots,
        "chat_template": info.chat_template.source,
        "default_generation_settings": {
            "n_ctx": settings.limits.max_prompt_tokens,
            **defaults,
            "max_tokens": GenerationBody.model_fields["max_tokens"].default,
            "n": GenerationBody.model_fields["n"].default,
        },
        "limits": asdict(settings.limits),
        "connections": asdict(settings.connections),
    }
    return json_response(body)


ROUTES = (Route("GET", "/props", props, "Facts of the server, its limits among them, as llama-server has it.", Props),)
