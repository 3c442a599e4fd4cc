"""Random JSON schemas of growing difficulty, whose texts are short."""

from __future__ import annotations

import random
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

_NAMES = ("name", "age", "naïve é", "a b", 'q"uote', "日本", "x", "items", "$id", "0")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
_PATTERNS = ("^[a-z]{1,5}$", "^(ab|cd)+[0-9]?$", r"^\d{3}-\d{4}$", "^[^\\s]{2,4}$")


def random_schema(seed: int) -> Schema:
    """Return a random schema. The greater `seed`, the deeper it may be."""
    chance = random.Random(seed)
    make = _Maker(chance)
    schema = make.any(depth=min(1 + seed // 60, 4))
    return {**schema, "$defs": make.definitions} if make.definitions else schema


class _Maker:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.definitions: dict[str, Schema] = {}

    def any(self, depth: int) -> Schema:
        leaves = [self._string, self._number, self._enum, self._constant]
        nested = [self._object, self._object, self._array, self._tuple, self._choice, self._reference]
        if depth > 0:
            return self._chance.choice(nested)(depth - 1)
        return self._chance.choice(leaves)(depth)

    def _string(self, _depth: int) -> Schema:
        kinds: list[Schema] = [
            {"minLength": self._chance.randint(0, 3), "maxLength": self._chance.randint(3, 12)},
            {"pattern": self._chance.choice(_PATTERNS), "maxLength": 12},
            {"format": self._chance.choice(_FORMATS)},
        ]
        return {"type": "string", **self._chance.choice(kinds)}

    def _number(self, _depth: int) -> Schema:
        least = self._chance.randint(-1000, 1000)
        most = least + self._chance.randint(1, 5000)
        kinds: list[Schema] = [
            {"type": "integer", "minimum": least, "maximum": most},
            {"type": "integer", "exclusiveMinimum": least, "maximum": most},
            {"type": "number", "minimum": least, "maximum": most},
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["boolean", "null"]},
        ]
        return self._chance.choice(kinds)

    def _enum(self, _depth: int) -> Schema:
        return {"enum": self._chance.sample(["a", "ab", "日本", 'q"\n', 1, 2.5, None, True, [1, 2], {"a": 1}], 3)}

    def _constant(self, _depth: int) -> Schema:
        return {"const": self._chance.choice(["yes", 7, None, {"k": [1, "v"]}, []])}

    def _object(self, depth: int) -> Schema:
        names = self._chance.sample(_NAMES, self._chance.randint(1, 4))
        required = [name for name in names if self._chance.random() < 0.6]
        properties = {name: self.any(self._chance.randint(0, depth)) for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def _array(self, depth: int) -> Schema:
        least = self._chance.randint(0, 2)
        items = self.any(self._chance.randint(0, depth))
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + self._chance.randint(0, 2)}

    def _tuple(self, depth: int) -> Schema:
        places = [self.any(self._chance.randint(0, depth)) for _ in range(self._chance.randint(1, 3))]
        return {"type": "array", "prefixItems": places, "items": False, "minItems": len(places)}

    def _choice(self, depth: int) -> Schema:
        return {"anyOf": [self.any(self._chance.randint(0, depth)) for _ in range(self._chance.randint(2, 3))]}

    def _reference(self, depth: int) -> Schema:
        name = f"part{len(self.definitions)}"
        self.definitions[name] = {}
        self.definitions[name] = self.any(depth)
        return {"$ref": f"#/$defs/{name}"}
