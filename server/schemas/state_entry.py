"""A named state in answers."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from states.files.reading import StateForm
from states.named.entry import NamedState


class StateEntry(TypedDict):
    """A named state. `num_tokens` is null where nobody told how many it has taken in.

    One that is `read_only` comes from the operator at every start: requests may start from it and copy it.
    """

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
    read_only: bool
    expires_in: float | None


def state_entry(named: NamedState) -> StateEntry:
    """Return what clients see of a state that a `StateStore` gave."""
    frozen = named.frozen
    return {
        "object": "state",
        "id": str(named.id),
        "name": named.name,
        "form": named.form,
        "source": named.source,
        "created": int(named.created),
        "digest": frozen.digest,
        "num_tokens": frozen.num_tokens,
        "has_shifts": frozen.has_shifts,
        "has_logits": frozen.logits is not None,
        "bytes": frozen.num_bytes,
        "owner": named.owner,
        "persistent": named.persistent,
        "read_only": named.read_only,
        "expires_in": named.expires_in,
    }
