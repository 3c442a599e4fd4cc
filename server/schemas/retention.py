"""How a client wants a new state to be kept: under which name, for whom and for how long."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field

from server.schemas.base import RequestBody
from states.named.entry import Retention


class RetentionBody(RequestBody):
    """To whom a new state belongs."""

    owner: str | None = Field(
        default=None, description="Whose lease it belongs to. Null: a lease of its own, under the state's name."
    )
    ttl: float | None = Field(
        default=None,
        description="Seconds without use after which the owner's lease, with all its states, ends. Null: as the owner "
        "has it already, else an hour.",
    )
    persistent: bool = Field(
        default=False, description="Keep it until it is removed, over restarts, too, and for no owner."
    )

    shared: bool = Field(
        default=False,
        description="Let every API key start from it and copy it; for a key with the scope `admin`. Without keys all "
        "states are shared.",
    )

    @property
    def retention(self) -> Retention:
        return Retention(self.owner, self.ttl, self.persistent, self.shared)


class NewStateBody(RetentionBody):
    """A state that is to have a name."""

    name: str = Field(description="A name that is free.")


def _from_name(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


SaveAs: TypeAlias = Annotated[NewStateBody, BeforeValidator(_from_name)]
