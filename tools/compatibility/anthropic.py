"""Anthropic's API."""

from __future__ import annotations

from tools.compatibility.bodies import DEFAULT, NOT_HERE, OWN_NAMES, USER
from tools.compatibility.table import System, call, different, same, unused

_TOOLS = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
_HABITS = {"inference_geo": "us", "speed": "standard", "user_profile_id": "a", "workspace_id": "w"}

ANTHROPIC = System(
    "Anthropic",
    "The official package works with `base_url` at the server's address. Errors come in its words.",
    (
        call(
            "/v1/messages",
            {"model": "demo", "max_tokens": 1, "messages": USER},
            same(
                messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
                max_tokens=1,
                system="Be brief.",
                stop_sequences=["a"],
                stream=True,
                tools=_TOOLS,
                tool_choice={"type": "none"},
            ),
            different(OWN_NAMES, model="demo"),
            different(DEFAULT, temperature=0.5, top_p=0.9, top_k=5),
            different("where the chat template can say it", thinking={"type": "disabled"}),
            different("effort, where the chat template can say it; format", output_config={"effort": "low"}),
            unused("what is kept of prompts is kept anyway", cache_control={"type": "ephemeral"}),
            unused(metadata={"user_id": "a"}, service_tier="auto", container="c", diagnostics={"a": 1}, **_HABITS),
        ),
        call(
            "/v1/messages/count_tokens",
            {"model": "demo", "messages": USER},
            same(messages=USER, system="Be brief.", tools=_TOOLS, tool_choice={"type": "none"}),
            different("where the chat template can say it", thinking={"type": "disabled"}),
            different("effort, where the chat template can say it; format", output_config={"effort": "low"}),
            unused(cache_control={"type": "ephemeral"}, speed="standard", user_profile_id="a", workspace_id="w"),
        ),
    ),
    refused_routes={"POST /v1/messages/batches": NOT_HERE, "POST /v1/complete": "take `/v1/messages`"},
)
