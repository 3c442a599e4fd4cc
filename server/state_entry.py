"""A named state as clients see it."""

from __future__ import annotations

from server.schemas.state_entry import StateEntry
from states.named.entry import NamedState
from states.named.registry import StateRegistry


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
