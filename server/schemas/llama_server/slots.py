"""The bodies of llama-server's routes about its slots, LoRAs and chat template."""

from __future__ import annotations

from typing import NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from server.schemas.state_ref import ModelNameBody


class SlotEntry(TypedDict):
    """A slot of the device. `n_ctx` is the most tokens of a prompt: a state has none. `speculative` says whether the
    server drafts."""

    id: int
    n_ctx: int
    speculative: bool
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


class SlotActionRequest(ModelNameBody):
    """What is to be saved or restored."""

    filename: str | None = Field(
        default=None, min_length=1, description="The name of the state; only `erase` does without one."
    )


class SlotTimings(TypedDict):
    save_ms: NotRequired[float]
    restore_ms: NotRequired[float]


class SlotAction(TypedDict):
    """What was done: tokens, and bytes of the state."""

    id_slot: int
    filename: NotRequired[str]
    n_saved: NotRequired[int]
    n_written: NotRequired[int]
    n_restored: NotRequired[int]
    n_read: NotRequired[int]
    n_erased: NotRequired[int]
    timings: NotRequired[SlotTimings]
