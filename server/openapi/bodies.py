"""JSON schemas of bodies, as the OpenAPI document has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeAlias, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core.core_schema import CoreSchema, ModelSchema

from server.http.routing import Kind
from server.schemas.base import RequestBody

Schema: TypeAlias = dict[str, Any]

_PLACE = "#/components/schemas/{model}"
_NULL: Schema = {"type": "null"}


def describe_bodies(kinds: Iterable[Kind], *, strict: bool = True) -> tuple[Mapping[Kind, Schema], dict[str, Schema]]:
    """Return the schema of each body, which may be a reference, and what the references stand for, by name.

    `strict` says whether the server refuses fields that it does not know.
    """
    kinds = list(kinds)
    bodies: list[tuple[int, JsonSchemaMode, TypeAdapter[Any]]] = [
        (number, "validation", TypeAdapter(cast(Any, kind))) for number, kind in enumerate(kinds)
    ]
    schemas, shared = TypeAdapter.json_schemas(
        bodies, ref_template=_PLACE, schema_generator=_BodySchema if strict else _LenientSchema
    )
    return {kinds[number]: schema for (number, _), schema in schemas.items()}, shared.get("$defs", {})


class _BodySchema(GenerateJsonSchema):
    """Adds to the schema of a request's body what is accepted beside its fields."""

    unknown: ClassVar[Schema] = _NULL  # what a field may be that is not known

    def model_schema(self, schema: ModelSchema) -> Schema:
        made = super().model_schema(schema)
        kind = schema["cls"]
        return _accepted(kind, made, self.unknown) if issubclass(kind, RequestBody) else made

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:  # noqa: ANN401, ARG002
        return False  # a title would say the field's name again


class _LenientSchema(_BodySchema):
    """The same for a server that leaves out fields that it does not know."""

    unknown: ClassVar[Schema] = {}


def _accepted(kind: type[RequestBody], schema: Schema, unknown: Schema) -> Schema:
    """Return the schema of a body with other names of its fields, null for defaults, and fields without effect."""
    fields: Mapping[str, Schema] = schema.get("properties", {})
    required = schema.get("required", [])
    properties = {name: field if name in required else _or_null(field) for name, field in fields.items()}
    properties |= {name: _without_effect(values) for name, values in kind.neutral.items() if name not in fields}
    properties |= {name: {"description": "Accepted without effect."} for name in kind.ignored if name not in fields}
    properties.update({name: dict(field) for name, field in kind.unfolded.items()})
    for alias, name in kind.aliases.items():
        properties[alias] = {**_or_null(_bare(fields[name])), "description": f"Another name of `{name}`."}
    made = {**schema, "properties": properties, "additionalProperties": unknown}
    made.pop("required", None)
    return made | _require(required, kind.aliases)


def _require(names: Iterable[str], aliases: Mapping[str, str]) -> Schema:
    """Return the keywords that want each of the fields under one of its names."""
    spellings = {name: [name, *(alias for alias, field in aliases.items() if field == name)] for name in names}
    wanted: Schema = {}
    if plain := [name for name, known in spellings.items() if len(known) == 1]:
        wanted["required"] = plain
    if choices := [known for known in spellings.values() if len(known) > 1]:
        wanted["allOf"] = [{"anyOf": [{"required": [name]} for name in known]} for known in choices]
    return wanted


def _without_effect(values: Iterable[object]) -> Schema:
    return {"enum": [*values, None], "description": "Accepted where the value has no effect."}


def _bare(schema: Schema) -> Schema:
    return {keyword: value for keyword, value in schema.items() if keyword not in ("description", "default")}


def _or_null(schema: Schema) -> Schema:
    """Return a schema that admits null, too, which means a field's default."""
    choices = schema.get("anyOf")
    if choices is not None:
        return schema if _NULL in choices else {**schema, "anyOf": [*choices, _NULL]}
    said: Schema = {keyword: schema[keyword] for keyword in ("description", "default") if keyword in schema}
    bare = _bare(schema)
    return {"anyOf": [bare, _NULL], **said} if bare else schema
