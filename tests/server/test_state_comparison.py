"""/v1/states/compare: two states by layer and head."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from rnn_engine_server.apis.engine.states import StateComparison
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine
from tests.support.http import Body, Client, Serve, error_of, post
from tests.support.models import tiny_shape

PATH = "/v1/states/compare"
SHAPE = tiny_shape(vocab=VOCAB_SIZE)


@pytest.fixture
async def client(serve: Serve) -> Client:
    """Return a client of a server with the states `a` and `b`."""
    client = await serve(FakeEngine())
    for name in ("a", "b"):
        assert (await client.post("/v1/states", json={"name": name, "prompt": name})).status == 200
    return client


async def compare(client: Client, **body: object) -> Body:
    return await post(client, PATH, StateComparison, body)


async def test_states_are_compared_by_field_layer_and_head(client: Client) -> None:
    found = await compare(client, state="a", other="b")
    assert (found["state"]["name"], found["other"]["name"]) == ("a", "b")
    assert [(field["name"], field["kind"]) for field in found["fields"]] == [
        (field.name, field.kind.value) for field in SHAPE.state_fields
    ]
    for field, one in zip(SHAPE.state_fields, found["fields"], strict=True):
        columns = field.shape[0] if one["kind"] == "matrix" else 1
        for rows in (one["norms"], one["other_norms"], one["differences"]):
            assert [len(row) for row in rows] == [columns] * SHAPE.num_layers
        assert all(0.5 < number < 2 for row in one["differences"] for number in row)  # random and independent
    back = await compare(client, state="b", other=found["state"]["id"])
    assert [field["differences"] for field in back["fields"]] == [field["differences"] for field in found["fields"]]


async def test_an_absent_other_is_an_empty_state(client: Client) -> None:
    found = await compare(client, state="a")
    assert found["other"] == {"name": None, "id": None, "digest": "none"}
    for field in found["fields"]:
        assert all(number == 0 for row in field["other_norms"] for number in row)
        assert all(number == 2 for row in field["differences"] for number in row)


async def test_numbers_may_come_in_the_request(client: Client) -> None:
    matrix = next(field for field in SHAPE.state_fields if len(field.shape) == 3)
    shape = [SHAPE.width, matrix.shape[1] + 2, SHAPE.num_layers, 1]
    numbers = np.ones(int(np.prod(shape)), "<f4")
    inline = {"data": base64.b64encode(numbers.tobytes()).decode(), "shape": shape}
    found = await compare(client, state=inline, other=inline)
    assert all(number == 0 for field in found["fields"] for row in field["differences"] for number in row)
    assert all(number > 0 for field in found["fields"] for row in field["norms"] for number in row)


async def test_a_state_that_is_not_there_is_named(client: Client) -> None:
    error = await error_of(await client.post(PATH, json={"state": "a", "other": "c"}), 404)
    assert "'c'" in error["message"]
