"""Which of llama-server's tests do not apply to this server, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_IMAGES = "images; the models here read text only"
_ROUTER = "llama-server's router, which starts a process for each model"
_MCP = "llama-server's tools and MCP servers for its web page"
_TEXT = "what the stories model says or how it divides a text into tokens"
_CONTEXT = "the end of a context; a recurrent state has none"
_KV_FILE = "the bytes of llama.cpp's file of keys and values"

NO_SUCH_OPTION: Mapping[str, str] = MappingProxyType(
    {
        "model_draft": "draft models",
        "spec_type": "draft models",
        "lora_files": "LoRAs that are scaled while the server runs; here they are merged at the start",
        "mmproj_url": _IMAGES,
        "media_path": _IMAGES,
        "enable_ctx_shift": _CONTEXT,
        "models_dir": _ROUTER,
        "models_preset": _ROUTER,
        "models_max": _ROUTER,
        "no_models_autoload": _ROUTER,
        "server_tools": _MCP,
        "mcp_servers_json": _MCP,
        "mcp_servers_config": _MCP,
        "ui_mcp_proxy": _MCP,
        "gcp_compat": "Google Cloud's form of requests",
        "no_ui": "llama-server's web page",
    }
)
"""Options of llama-server's process without a counterpart here: the test that sets one does not apply."""

MODELS: Mapping[str | None, str | None] = MappingProxyType(
    {
        "ggml-org/test-model-stories260K": None,
        "ggml-org/models": None,
        "ggml-org/stories15M_MOE": None,
        "ggml-org/test-model-stories260K-infill": "text that is filled in; `/infill` is refused with the reason",
        "ggml-org/tinygemma3-GGUF:Q8_0": _IMAGES,
        None: _ROUTER,
    }
)
"""The models that tests name: None where the tiny one takes the place, else why the test does not apply."""

LARGE_MODEL = "a model of gigabytes that is downloaded"

DOES_NOT_APPLY: tuple[tuple[str, str], ...] = ()
"""Patterns of tests, as FILE::NAME[PARAMETERS], that do not apply, each with the reason; the first that fits counts."""
