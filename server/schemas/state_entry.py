"""A named state in answers."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from states.files.reading import StateForm
from states.named.entry import NamedState
from states.named.registry import StateRegistry


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


def state_entry(states: StateRegistry, named: NamedState) -> StateEntry:
    """What is known of a state. To look at it does not renew its lease."""
    initial = named.initial
    return {
        "object": "state",
        "id": str(named.id),
        "name": named.name,
        "form": named.form,
        "source": named.source,
        "created": int(named.created),
        "digest": initial.digest,
        "num_tokens": initial.num_tokens,
        "has_shifts": initial.has_shifts,
        "has_logits": initial.logits is not None,
        "bytes": initial.num_bytes,
        "owner": named.owner,
        "persistent": named.persistent,
        "expires_in": states.seconds_left(named),
    }
