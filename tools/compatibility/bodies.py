"""Values that several systems' fields have."""

from __future__ import annotations

from typing import Any

USER = [{"role": "user", "content": "Hello"}]
CHAT = {"messages": USER, "max_tokens": 1}
TEXT = {"prompt": "Hello", "max_tokens": 1}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
GBNF = 'root ::= "a"'

TEXT_ONLY = "the model reads and writes text only"
NO_FILLING_IN = "RWKV models have not learned to fill in text before an end"
NOT_HERE = "this server does not have it"
MERGED = "LoRAs are merged into the weights when a model is loaded"
DEFAULT = "another default: the one that RWKV models are usually run with"
OWN_NAMES = "the names of `/v1/models`; absent or null, the default model"
