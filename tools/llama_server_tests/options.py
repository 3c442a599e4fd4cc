"""Convert llama-server's options, as its tests set them, to this server's options and request fields."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_REASONS = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text("utf-8"))


def _reasons(table: str) -> dict[str, str]:
    """Return a table of the file of reasons: the name of an option or the like -> why tests of it do not apply."""
    return {name: _REASONS["shared"].get(reason, reason) for name, reason in _REASONS[table].items()}


NO_SUCH_OPTION, MODELS, DOES_NOT_APPLY = map(_reasons, ("options", "models", "tests"))
LARGE_MODEL, _ROUTER = _REASONS["shared"]["large_model"], _REASONS["shared"]["router"]
_SLOTS = 4  # where a test sets none
_GENERATING = ("completion", "messages", "responses", "infill")
_CHAT = ("chat/completions", "apply-template")


class DoesNotApplyError(Exception):
    """A test needs something that this server does not have. The message is the reason."""


def options_of(server: Any, models: Path, tests: Path) -> list[str]:  # noqa: ANN401
    """Return the command line options for this server that match a `ServerProcess` of llama-server's tests.

    Raises DoesNotApplyError if an option has no counterpart here.
    """
    reasons = [reason for name, reason in NO_SUCH_OPTION.items() if getattr(server, name)]
    if not server.cors_origins:
        reasons.append(MODELS.get(server.model_hf_repo, LARGE_MODEL) if server.model_hf_repo else _ROUTER)
    if any(reasons):
        raise DoesNotApplyError(next(filter(None, reasons)))
    slots = server.n_slots or _SLOTS
    name = server.model_alias or "tiny"
    options = [f"{name}={models / 'tiny.safetensors'}", "--any-model", "--device", "cpu", "--slots", str(slots)]
    if server.n_ctx and not server.server_reranking and not server.server_embeddings:  # there it bounds each text
        tokens = server.n_ctx if server.kv_unified else server.n_ctx // slots
        options += ["--max-prompt-tokens", str(tokens)]
    if server.chat_template_file:
        options += ["--chat-template", str((tests / server.chat_template_file).resolve())]
    elif server.chat_template:
        options += ["--chat-template", str(_template(server.chat_template, models))]
    for option, value in {
        "--api-key": server.api_key,
        "--cors-origin": server.cors_origins or ("*" if server.api_key else None),
        "--reasoning-format": server.reasoning_format,
        "--state-folder": server.slot_save_path,
        "--idle-unload": server.sleep_idle_seconds,
    }.items():
        options += [] if value is None else [option, str(value)]
    return options


def body_of(server: Any, path: str, body: Any) -> Any:  # noqa: ANN401
    """Return a request's body with the defaults added that the test set as options of the server process."""
    if not isinstance(body, Mapping):
        return body
    defaults: dict[str, object] = {}
    if any(word in path for word in _GENERATING):
        defaults = {"temperature": server.temperature, "seed": server.seed}
        if server.n_predict and not body.keys() & {"n_predict", "max_tokens", "max_output_tokens"}:
            defaults["max_output_tokens" if "responses" in path else "max_tokens"] = server.n_predict
        if "messages" in path or "responses" in path:
            del defaults["seed"]
    if any(word in path for word in _CHAT) and server.reasoning is not None:
        defaults["chat_template_kwargs"] = {"enable_thinking": server.reasoning != "off"}
    if "chat/completions" in path and server.debug:
        defaults["verbose"] = True
    if path == "/embeddings" and server.pooling == "none":
        defaults["per_token"] = True
    return {**defaults, **body}


def _template(text: str, folder: Path) -> Path:
    """Write the Jinja chat template that a test needs to a file, and return its path.

    Raises DoesNotApplyError if `text` is the name of a template of llama-server.
    """
    if " " not in text:
        raise DoesNotApplyError("a chat template by a name that llama-server knows")
    path = folder / "template.jinja"
    path.write_text(text)
    return path
