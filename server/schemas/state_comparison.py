"""The bodies of /v1/states/compare."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import TypedDict

from server.schemas.state_ref import ModelNameBody, State


class CompareStatesRequest(ModelNameBody):
    """Two states, each in any form in which a request may start from one."""

    state: State = Field(
        default=None,
        description="The name or id of a state; `none` for an empty one; a state in ai00's order, as "
        '{"data": ..., "shape": ...}; or {"path": ...}, a file in the folder of states. Null is the default state.',
    )
    other: State = Field(default=None, description="The same for the other state. Null is an empty one.")


class ComparedState(TypedDict):
    """`name` and `id` are null where the request does not say either; `digest` is equal for equal states."""

    name: str | None
    id: str | None
    digest: str


class ComparedField(TypedDict):
    """A field of the states: a list a layer of numbers, one a head of a `matrix`, else one.

    `norms` and `other_norms` are Euclidean. `differences` are the norms of the difference over the mean of both: 0
    where the states are equal, 2 where one of them is zero or they are opposite.
    """

    name: str
    kind: Literal["shift", "vector", "matrix"]
    norms: list[list[float]]
    other_norms: list[list[float]]
    differences: list[list[float]]


class StateComparison(TypedDict):
    """`fields` are in the order of the model's states."""

    object: Literal["state.comparison"]
    state: ComparedState
    other: ComparedState
    fields: list[ComparedField]
