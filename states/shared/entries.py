"""Named states and leases as texts in a shared store."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from rnn_engine.errors import StorageError
from states.named.entry import NamedState
from states.named.leases import Lease
from states.shared.unread import UnreadState, make_unread

ValueKey = tuple[str, bool]
"""What tells the values of named states apart: their digest, and whether logits are with them."""


def key_of(frozen: UnreadState) -> ValueKey:
    """What tells a state's values from others."""
    return frozen.digest, frozen.logits is not None


def encode_entry(entry: NamedState) -> str:
    """A named state as a text."""
    frozen = entry.frozen
    return json.dumps(
        {
            "id": str(entry.id),
            "version": entry.version,
            "name": entry.name,
            "form": entry.form,
            "source": entry.source,
            "created": entry.created,
            "owner": entry.owner,
            "digest": frozen.digest,
            "logits": frozen.logits is not None,
            "num_tokens": frozen.num_tokens,
            "last_tokens": frozen.last_tokens,
            "num_bytes": frozen.num_bytes,
            "shifts": frozen.has_shifts,
        }
    )


def decode_entry(text: str | bytes, share: Callable[[UnreadState], UnreadState]) -> NamedState:
    """A named state of a text; `share` gives the one object that stands for equal values."""
    try:
        content = json.loads(text)
        frozen = make_unread(
            content["digest"],
            content["logits"],
            content["num_tokens"],
            tuple(content["last_tokens"]),
            content["num_bytes"],
            content["shifts"],
        )
        return NamedState(
            uuid.UUID(content["id"]),
            content["version"],
            content["name"],
            content["form"],
            content["source"],
            content["created"],
            content["owner"],
            share(frozen),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"the store has a named state that can't be understood: {error!r}") from error


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it is in a store, but for its last use."""

    owner: str
    number: int
    ttl: float


def encode_lease(lease: Lease) -> str:
    """A lease as a text."""
    return json.dumps({"number": lease.number, "ttl": lease.ttl})


def decode_lease(owner: str, text: str | bytes) -> StoredLease:
    """A lease of a text."""
    try:
        content = json.loads(text)
        return StoredLease(owner, int(content["number"]), float(content["ttl"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"the store has a lease that can't be understood: {error!r}") from error
