"""Models as Ollama's API tells of them."""

from __future__ import annotations

import hashlib
import json

from rnn_engine.interface import EngineInfo
from server.formatting.ollama import timestamp
from server.models.served import ServedModel
from server.schemas.ollama.answer import OllamaDetails, OllamaModel, OllamaModelFacts

_NEVER = "9999-12-31T23:59:59Z"


def ollama_model(model: ServedModel, info: EngineInfo) -> OllamaModel:
    """Return what a list says of a model. The digest is that of its facts, not of its file."""
    facts = repr((info.model, info.shape, info.weights, info.loras))
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": timestamp(info.created),
        "size": info.device_bytes or 0,
        "digest": hashlib.sha256(facts.encode()).hexdigest(),
        "details": _details(info),
    }


def running_model(model: ServedModel, info: EngineInfo) -> OllamaModel:
    """Return what is said of a model that is loaded."""
    return {**ollama_model(model, info), "size_vram": info.device_bytes or 0, "expires_at": _NEVER}


def model_facts(info: EngineInfo, most_prompt_tokens: int) -> OllamaModelFacts:
    """Return all that is told of one model. Its context has no end; told is the longest prompt that is taken."""
    family, source = _family(info), info.chat_template.source
    sizes = {f"{family}.{name}": size for name, size in info.shape.sizes.items()}
    return {
        "modelfile": f"FROM {info.model}",
        "parameters": "",
        "template": source if isinstance(source, str) else json.dumps(source, ensure_ascii=False),
        "details": _details(info),
        "model_info": {
            "general.architecture": family,
            "general.basename": info.model,
            f"{family}.context_length": most_prompt_tokens,
            f"{family}.embedding_length": info.shape.sizes["width"],
            f"{family}.block_count": info.shape.sizes["num_layers"],
            **sizes,
        },
        "capabilities": ["completion", "tools", "thinking", "embedding"],
        "modified_at": timestamp(info.created),
    }


def _family(info: EngineInfo) -> str:
    return f"rwkv{info.shape.version.removeprefix('v')}"


def _details(info: EngineInfo) -> OllamaDetails:
    family = _family(info)
    return {
        "parent_model": "",
        "format": "rwkv",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": info.weights,
    }
