"""Models in OpenAI's shape."""

from __future__ import annotations

from typing import cast

from rnn_engine.errors import ModelNotFoundError
from server.models.served import ServedModel
from server.schemas.models import ModelEntry, ModelMeta


def model_entry(model: ServedModel) -> ModelEntry:
    """Return what clients see of a model. Raises ModelNotFoundError while it is loaded for the first time."""
    info = model.info
    if info is None:
        raise ModelNotFoundError(f"model: {model.name!r} is being loaded for the first time")
    meta = {
        "version": info.shape.version,
        **info.shape.sizes,
        "device": info.device,
        "device_bytes": info.device_bytes,
        "weights": info.weights,
        "num_slots": info.num_slots,
        "max_logprobs": info.max_logprobs,
        "tokenizer": info.tokenizer,
        "loras": [{"name": lora.path.name, "alpha": lora.alpha} for lora in info.loras],
        "state_bytes": info.shape.state_bytes,
        "chat_template": info.chat_template.source,
        "status": model.status,
    }
    return {
        "id": model.name,
        "object": "model",
        "created": info.created,
        "owned_by": "rnn-engine",
        "meta": cast(ModelMeta, meta),  # TypedDict can't be checked where keys depend on the version
    }
