"""A named state in answers."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from states.files.reading import StateForm


class StateEntry(TypedDict):
    """A named state. `num_tokens` is null where nobody told how many it has taken in."""

    object: Literal["state"]
    id: str
    name: str
    form: StateForm
    source: str
    created: int
    digest: str
    num_tokens: int | None
    has_shifts: bool
    has_logits: bool
    bytes: int
    owner: str | None
    persistent: bool
    expires_in: float | None
