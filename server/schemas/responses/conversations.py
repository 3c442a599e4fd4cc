"""The requests and answers of OpenAI's /v1/conversations."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema
from typing_extensions import TypedDict

from server.schemas.base import STRING, RefusedError, RequestBody
from server.schemas.responses.items import Items

_ITEMS = (
    "Messages, `function_call`, `function_call_output`, `reasoning`, and `item_reference` to an item of a response."
)


def _parse_ref(value: object) -> str:
    match value:
        case str(found) | {"id": str(found)}:
            return found
    raise RefusedError(value, 'the id of a conversation, or {"id": ...}')


ConversationRef: TypeAlias = Annotated[
    str,
    BeforeValidator(_parse_ref),
    WithJsonSchema({"anyOf": [STRING, {"type": "object", "properties": {"id": STRING}, "required": ["id"]}]}),
]


class CreateConversationRequest(RequestBody):
    """A conversation to be kept."""

    items: Items = Field(default=[], description=f"What it begins with. {_ITEMS}")
    metadata: dict[str, str] = Field(default={}, description="Told with the conversation as it is.")


class UpdateConversationRequest(RequestBody):
    metadata: dict[str, str] = Field(description="Takes the place of what the conversation has.")


class AddItemsRequest(RequestBody):
    items: Items = Field(min_length=1, description=f"What comes after the conversation so far. {_ITEMS}")


class KeptConversation(TypedDict):
    """A conversation without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(TypedDict):
    """What became of a conversation."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]
