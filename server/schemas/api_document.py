"""The body of /openapi.json."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict


class ApiDocument(TypedDict):
    """All routes and bodies, as OpenAPI 3.1 has them. `x-alias-of` of an operation names the path that it is another
    name of, `x-scope` what an API key has to have, and `x-event-schema` what one event of a stream holds."""

    openapi: Literal["3.1.0"]
    info: dict[str, Any]
    servers: list[dict[str, Any]]
    security: list[dict[str, list[str]]]
    tags: list[dict[str, str]]
    paths: dict[str, dict[str, Any]]
    components: dict[str, dict[str, Any]]
