"""Load the chat template that a user chose, or find the one that comes with a model."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rnn_engine.chat_template.conversation import ChatTemplate, WorldTemplate
from rnn_engine.chat_template.jinja import JinjaTemplate
from rnn_engine.chat_template.tools import ToolFormats
from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.files import read_text
from rnn_engine.model.huggingface import read_json
from rnn_engine.tensor_files.formats import gguf_metadata

_log = logging.getLogger(__name__)

_MOST_BYTES: Final = 2**20
_JINJA_FILE: Final = "chat_template.jinja"
_JSON_FILES: Final = ("chat_template.json", "tokenizer_config.json")
_WORLD_FIELDS: Final = ("record", "prefix", "sep", "tools", "thinks")
SPECIAL_KEYS: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}
"""A variable of templates that is a special token -> the end of the key that gives its id in a GGUF file."""
WORLD_KEY: Final = "rnn_engine.chat_template"
"""The key of a GGUF file for the settings of World's template, in JSON, which no other program reads."""
_THINKS: Final = re.compile(r"(?:^|[^a-z0-9]|rwkv-?7[a-z]?)g\d(?:[a-z]\d*)?(?![a-z0-9])", re.IGNORECASE)
"""What names of RWKV-7 G1 and its variants contain."""
_HAS_NO_THOUGHTS: Final = re.compile(r"world(?![a-z])|goose|rwkv[-_]?[vx]?0?[456](?!\d)", re.IGNORECASE)
_NAME_KEYS: Final = ("general.name", "general.basename", "general.finetune", "_name_or_path", "name", "model_name")


def load_chat_template(choice: str, model_path: Path) -> ChatTemplate:
    """Load the chat template that `choice` selects: auto, world, or the path of a file.

    A file is a Jinja template, or JSON: a tokenizer_config.json with a `chat_template`, or the texts around World's
    messages (record, prefix, sep), with `tools` (one of tagged, json, json_parameters, signatures) and `thinks`. `auto`
    selects the template in the model's folder or in its GGUF file, or else World's. Raises ModelError if a file that
    `choice` names can't be read.
    """
    match choice:
        case "auto":
            return _find(model_path)
        case "world":
            return _world(model_path)
        case _:
            found = _read(Path(choice))
            if found is None:
                raise ModelError(
                    f"{choice}: expected a Jinja template, or JSON with chat_template or {', '.join(_WORLD_FIELDS)}"
                )
            return found


def _find(model_path: Path) -> ChatTemplate:
    folder = model_path if model_path.is_dir() else model_path.parent
    for name in (_JINJA_FILE, *_JSON_FILES):
        if not (folder / name).is_file():
            continue
        try:
            found = _read(folder / name)
        except ModelError as error:
            _log.warning("%s; RWKV World's template is used instead", error)
            continue
        if found is not None:
            return found
    return _from_gguf(model_path) or _world(model_path)


def _world(model_path: Path) -> WorldTemplate:
    return WorldTemplate(thinks=_thinks(model_path))


def _thinks(model_path: Path) -> bool:
    """Return True if a model's names say that it is RWKV-7 G1 or a variant of it, which thinks if asked.

    The first name that says what the model is counts: of the file or folder itself, within it, of the folder above,
    and of a repository in the Hub's cache.
    """
    path = model_path.absolute()
    cached = (each.name for each in path.parents if each.name.startswith("models--"))
    for name in chain((path.name,), _names_within(path), (path.parent.name,), cached):
        if _HAS_NO_THOUGHTS.search(name):
            return False
        if _THINKS.search(name):
            return True
    return False


def _names_within(model_path: Path) -> Iterator[str]:
    """Yield the names that a GGUF file's metadata and a folder's configuration give the model."""
    config = (model_path if model_path.is_dir() else model_path.parent) / "config.json"
    settings = _gguf_metadata(model_path)
    with suppress(ModelError):
        settings = settings or (read_json(config) if config.is_file() else {})
    yield " ".join(name for key in _NAME_KEYS if isinstance(name := settings.get(key), str))


def _from_gguf(model_path: Path) -> ChatTemplate | None:
    """Return the usable chat template of a GGUF file, or None. One that can't be read is logged."""
    metadata = _gguf_metadata(model_path)
    found, tokens = metadata.get("tokenizer.chat_template"), metadata.get("tokenizer.ggml.tokens")
    special = {}
    for name, key in SPECIAL_KEYS.items():
        token = metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(tokens, list) and type(token) is int and 0 <= token < len(tokens):
            special[name] = tokens[token].decode(errors="replace")
    try:
        if isinstance(world := metadata.get(WORLD_KEY), str) and isinstance(settings := json.loads(world), dict):
            return _make_world(model_path, settings)
        return _jinja(model_path, found, special) if isinstance(found, str) else None
    except (ModelError, ValueError) as error:
        _log.warning("%s; RWKV World's template is used instead", error)
        return None


def _gguf_metadata(path: Path) -> Mapping[str, object]:
    """Return the metadata of a GGUF file, with texts as str; empty for a file of another kind or a damaged one."""
    try:
        found = gguf_metadata(path)
    except ModelError:
        return {}  # it is reported when its tensors are read
    return {key: value.decode(errors="replace") if isinstance(value, bytes) else value for key, value in found.items()}


def _read(path: Path) -> ChatTemplate | None:
    """Return the template in a Jinja or JSON file; None if it has none. Raises ModelError if it can't be read."""
    beside = path.parent / _JSON_FILES[1]
    if path.suffix != ".json":
        return _jinja(path, _read_text(path), read_json(beside) if beside.is_file() else {})
    settings = read_json(path)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("tool_use") or named.get("default")
    if isinstance(template, str):
        return _jinja(path, template, {**(read_json(beside) if beside.is_file() else {}), **settings})
    return _make_world(path, settings) if settings and set(settings) <= {*_WORLD_FIELDS} else None


def _jinja(path: Path, source: str, settings: Mapping[str, Any]) -> JinjaTemplate | None:
    """Return the Jinja template `source`; None if it is only the name of a template, which other programs have."""
    if "{" not in source:
        return None
    special = {}
    for name in SPECIAL_KEYS:
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        special[name] = text if isinstance(text, str) else ""
    end = special["eos_token"]
    try:
        return JinjaTemplate(source, special, stop_tokens=[end] if end.strip() else [])
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def world_settings(template: WorldTemplate) -> dict[str, object]:
    """Return the JSON of which `load_chat_template` makes `template`; it is empty for World's usual one."""
    kind = next(each.name.lower() for each in ToolFormats if each.value == template.tool_format)
    settings = {**template.source, "tools": kind, "thinks": template.thinks}
    return {} if template == WorldTemplate() else settings


def _make_world(path: Path, settings: Mapping[str, Any]) -> WorldTemplate:
    kind = settings.get("tools", "tagged")
    texts = {name: settings[name] for name in ("record", "prefix", "sep") if name in settings}
    formats = {each.name.lower(): each.value for each in ToolFormats}
    if kind not in formats or not all(isinstance(text, str) for text in texts.values()):
        raise ModelError(f"{path}: expected texts for record, prefix and sep, and tools as one of {', '.join(formats)}")
    try:
        return WorldTemplate(**texts, tool_format=formats[kind], thinks=settings.get("thinks") is True)
    except InvalidRequestError as error:
        raise ModelError(f"{path}: {error}") from error


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ModelError(f"{path} has {path.stat().st_size} bytes; expected at most {_MOST_BYTES}")
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} can't be read: {error}") from error
