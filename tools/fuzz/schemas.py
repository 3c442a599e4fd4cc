"""Random bodies that fit a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

NAMES = tuple(f"fuzz {number}" for number in range(6))
"""Names of states, which are made, used and removed again and again."""

_TEXTS = ("Hello", "a", "User: Hi\n\nAssistant:", "one two three", "é", "", " ", "none", "user")
_TEXTS_OF = {
    "role": ("user", "assistant", "system", "tool", "User"),
    "name": NAMES,
    "names": NAMES,
    "state": (*NAMES, "none", "pirate"),
    "save_as": NAMES,
}
_OPTIONAL = 2  # the average number of optional fields in an object


def make_value(schema: Schema, random: Random, definitions: Mapping[str, Schema], name: str = "") -> Any:  # noqa: ANN401
    """Return a random value that fits `schema`. `name` is the field that holds it."""
    if "$ref" in schema:
        return make_value(definitions[schema["$ref"].rpartition("/")[2]], random, definitions, name)
    if "anyOf" in schema:
        return make_value(random.choice(schema["anyOf"]), random, definitions, name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return random.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            return _make_object(schema, random, definitions)
        case "array":
            count = random.randint(1, 3) if schema.get("items") else 0
            return [make_value(schema["items"], random, definitions, name) for _ in range(count)]
        case "string":
            return random.choice(_TEXTS_OF.get(name, _TEXTS))
        case "integer":
            return _make_integer(schema, random)
        case "number":
            return random.choice((0, 1, 0.5, random.random(), random.uniform(-2, 2)))
        case "boolean":
            return random.random() < 0.5
    return None


def _make_object(schema: Schema, random: Random, definitions: Mapping[str, Schema]) -> dict[str, Any]:
    required = schema.get("required", ())
    fields = schema.get("properties", {})
    made = {
        name: make_value(field, random, definitions, name)
        for name, field in fields.items()
        if name in required or random.random() < _OPTIONAL / len(fields)
    }
    if not fields and isinstance(schema.get("additionalProperties"), Mapping):
        for name in random.sample(("1", "2", "user", "assistant", "a"), random.randint(0, 2)):
            made[name] = make_value(schema["additionalProperties"], random, definitions, name)
    return made


def _make_integer(schema: Schema, random: Random) -> int:
    least = schema.get("minimum", 0)
    most = schema.get("maximum", least + 20)
    return random.randint(least, min(most, least + 20))
