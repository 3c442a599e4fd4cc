"""Which of llama-server's tests do not apply to this server, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_IMAGES = "images; the models here read text only"
_ROUTER = "llama-server's router, which starts a process for each model"
_MCP = "llama-server's tools and MCP servers for its web page"
_TEXT = "what the stories model answers, or how it splits a text into tokens"
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

_PREFLIGHT = "pages that are admitted without being named; here `*` admits all, without credentials"
_FOREIGN = "a preflight of a page that is not admitted; here it gets 403"
_OPTIONAL = "routes that llama-server has by an option only; here they are always there"
_SLEEP = "llama-server's sleep; here `--idle-unload` frees a model"

DOES_NOT_APPLY: tuple[tuple[str, str], ...] = (
    (r"test_basic.*multiple_addresses", "several addresses in one option"),
    (r"test_basic.*server_props", "the ending of llama.cpp's files, and a seed for all requests"),
    (r"test_basic.*server_slots|test_metrics_disabled", _OPTIONAL),
    (r"test_basic.*no_ui|static_assets", "llama-server's web page"),
    (r"aliases_and_tags", "tags, and several names of one model"),
    (r"chat_completion_cached_tokens|completion_prompt_cache", _TEXT),
    (r"test_chat_template_assistant_prefill\[prefill1", "parts of a message with blank lines between them"),
    (r"invalid_chat_completion_req\[messages7\]", "two messages of the assistant at the end, which are taken here"),
    (
        r"test_chat_completion.*::test_logprobs",
        "parts of characters, which are returned in OpenAI's form: `bytes:\\\\xd5`",
    ),
    (r"metrics_prometheus_format", "the metrics of draft models"),
    (r"tool_result_with_image|vision_format_accepted", "the status 500 for images; here they are refused with 400"),
    (r"anthropic_empty_messages", "a conversation without messages, which is refused here"),
    (r"response_fields\[.*fields1", "the text of a token for the beginning of texts"),
    (r"tokenize_with_bos", "a token for the beginning of texts"),
    (r"ctx_shift_disabled_short_prompt\[-1", _CONTEXT),
    (r"ctx_shift_disabled_long_prompt|error_prompt_too_long", "the words of an error"),
    (r"embedding_mixed_input\[-False", "an empty input, which is refused here as OpenAI does"),
    (r"embedding_pooling_none$", "the number of tokens, counting special tokens around a text"),
    (r"embedding_pooling_none_oai", "pooling that is chosen for the whole server"),
    (r"embedding_usage_multiple", _TEXT),
    (r"responses_stream_with_llama_telemetry", "an answer that is cut, which ends as OpenAI's: `response.incomplete`"),
    (r"test_kv_keep_only_active", "llama-server's log"),
    (r"test_mcp_no_proxy|test_cors_.*tools_enabled", _MCP),
    (r"test_rerank(_tei_format)?$", "the results of a model that was trained to rerank"),
    (r"test_rerank_usage", _TEXT),
    (r"test_router\.py", _ROUTER),
    (r"test_tools_builtin\.py", _MCP),
    (r"with_qwen_model|with_big_model", LARGE_MODEL),
    (r"test_cache_vs_nocache_prompt", "what llama-server itself does not do yet"),
    (r"test_cors_options", _PREFLIGHT),
    (r"localhost_rejects", _FOREIGN),
    (r"test_sleep\.py", _SLEEP),
    (r"test_slot_save_restore$|test_slot_erase", _TEXT),
    (r"test_slot_restore_legacy", _KV_FILE),
)
"""Patterns of tests, as FILE::NAME[PARAMETERS], that do not apply, each with the reason; the first that fits counts."""
