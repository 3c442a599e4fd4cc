"""What is loaded, as ai00 tells of it."""

from __future__ import annotations

from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.interface import EngineInfo
from server.models.orders import LoadOrder
from server.schemas.ai00.models import Ai00Quant, Ai00Reload, Ai00StateFile

_TYPES: dict[str, Ai00Quant] = {"int8": "Int8", "nf4": "NF4", "sf4": "SF4"}
_CHUNK = 128  # ai00's default, which is no setting here


def describe_load(order: LoadOrder, info: EngineInfo) -> Ai00Reload:
    """Return how a model was loaded, so that it may be loaded so again."""
    weights = WeightChoice.parse(info.weights)
    kind = _TYPES.get(weights.formats["att"], "None")
    layers = info.shape.num_layers if weights.num_layers is None else weights.num_layers
    index = order.device
    return {
        "model_path": str(order.path),
        "name": info.model,
        "lora": [{"path": str(lora.path), "alpha": lora.alpha} for lora in info.loras],
        "state": _states(order),
        "weights": info.weights,
        "quant": 0 if kind == "None" else layers,
        "quant_type": kind,
        "precision": "Fp32",
        "token_chunk_size": _CHUNK,
        "max_batch": info.num_slots,
        "tokenizer_path": order.tokenizer,
        "bnf": {"enable_bytes_cache": True, "start_nonterminal": "start"},
        "adapter": {"Manual": int(index)} if index is not None and index.isdecimal() else "Auto",
        "device": info.device,
    }


def _states(order: LoadOrder) -> list[Ai00StateFile]:
    return [
        {
            "path": str(file.path),
            "name": file.name,
            "id": None if file.id is None else str(file.id),
            "default": file.name is not None and file.name == order.default_state,
        }
        for file in order.states
    ]
