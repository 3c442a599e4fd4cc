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


_MOST_PAIRS, _MOST_NAME, _MOST_VALUE = 16, 64, 512  # as OpenAI has them


def _check_metadata(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if len(value) > _MOST_PAIRS:
        raise RefusedError(f"{len(value)} pairs", f"at most {_MOST_PAIRS} pairs")
    for name, text in value.items():
        if len(name) > _MOST_NAME:
            raise RefusedError(name, f"names of at most {_MOST_NAME} characters")
        if isinstance(text, str) and len(text) > _MOST_VALUE:
            raise RefusedError(text, f"values of at most {_MOST_VALUE} characters", below=name)
    return value


Metadata: TypeAlias = Annotated[
    dict[str, str],
    BeforeValidator(_check_metadata),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": _MOST_PAIRS,
            "propertyNames": {"maxLength": _MOST_NAME},
            "additionalProperties": {"type": "string", "maxLength": _MOST_VALUE},
        }
    ),
]
METADATA_BOUNDS = f"At most {_MOST_PAIRS} pairs, names of {_MOST_NAME} characters and values of {_MOST_VALUE}."


class CreateConversationRequest(RequestBody):
    """A conversation to be kept."""

    items: Items = Field(default=[], description=f"What it begins with. {_ITEMS}")
    metadata: Metadata = Field(default={}, description=f"Told with the conversation as it is. {METADATA_BOUNDS}")


class UpdateConversationRequest(RequestBody):
    metadata: Metadata = Field(description=f"Takes the place of what the conversation has. {METADATA_BOUNDS}")


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
