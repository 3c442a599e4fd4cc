"""The bodies of llama-server's routes about its slots, LoRAs and chat template."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class SlotEntry(TypedDict):
    """A slot of the device. `n_ctx` is the most tokens of a prompt: a state has none."""

    id: int
    n_ctx: int
    speculative: Literal[False]
    is_processing: bool


class LoraAdapter(TypedDict):
    """A LoRA that was merged into the weights when the model was loaded. `alpha` is null where its own counts."""

    id: int
    path: str
    scale: float
    alpha: float | None


class AppliedTemplate(TypedDict):
    """`prompt` is what the model reads for a chat."""

    prompt: str
