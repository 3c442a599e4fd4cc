"""What Mistral's package needs of OpenAI's routes, and its route that fills in text."""

from __future__ import annotations

from rnn_engine_server.apis.openai.embeddings import EmbeddingList
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve, error_of, post


async def test_filling_in_is_refused_with_the_reason(serve: Serve) -> None:
    client = await serve(FakeEngine())
    error = await error_of(await client.post("/v1/fim/completions", json={"prompt": "a", "suffix": "b"}), 501)
    assert "has not learned to fill in" in error["message"]


async def test_models_and_embeddings_have_the_fields_that_its_package_needs(serve: Serve) -> None:
    client = await serve(FakeEngine())
    [model] = (await (await client.get("/v1/models")).json())["data"]
    assert (model["type"], model["capabilities"]["completion_chat"]) == ("base", True)
    assert await (await client.get("/v1/models/fake")).json() == model
    ids = {(await post(client, "/v1/embeddings", EmbeddingList, {"input": "a"}))["id"] for _ in range(2)}
    assert len(ids) == 2
