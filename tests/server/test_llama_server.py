"""llama-server's own routes beside /completion."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.model import LoraChoice
from server.schemas.llama_server.rerank import Reranked
from server.schemas.llama_server.slots import AppliedTemplate, LoraAdapter, SlotEntry
from server.schemas.props import Props
from server.schemas.tokens import Tokens
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import Body, Serve, check_shape, error_of, post


async def test_slots_tell_how_many_are_taken(serve: Serve) -> None:
    engine = FakeEngine(num_slots=3)
    engine.active = 1
    client = await serve(engine)
    entries = await (await client.get("/slots")).json()
    for entry in entries:
        check_shape(SlotEntry, entry)
    assert [(entry["id"], entry["is_processing"]) for entry in entries] == [(0, True), (1, False), (2, False)]
    assert (await client.get("/slots?fail_on_no_slot=1")).status == 200
    engine.active = 3
    await error_of(await client.get("/slots?fail_on_no_slot=1"), 503)
    await error_of(await client.get("/slots?fail_on_no_slot=2"), 400)


async def test_loras_are_those_that_are_merged(serve: Serve) -> None:
    client = await serve(FakeEngine(loras=(LoraChoice(Path("folder/lora.st"), 32.0),)))
    [entry] = await (await client.get("/lora-adapters")).json()
    check_shape(LoraAdapter, entry)
    assert entry == {"id": 0, "path": "lora.st", "scale": 1.0, "alpha": 32.0}
    error = await error_of(await client.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}]), 501)
    assert "merged" in error["message"]


async def test_props(serve: Serve) -> None:
    answer = await (await (await serve(FakeEngine())).get("/props")).json()
    check_shape(Props, answer)
    assert (answer["model_alias"], answer["total_slots"]) == ("fake", 2)
    assert answer["default_generation_settings"]["n_ctx"] == answer["limits"]["max_prompt_tokens"]


async def test_template_is_applied_without_running_the_model(serve: Serve) -> None:
    engine = FakeEngine()
    body: Body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = await post(await serve(engine), "/apply-template", AppliedTemplate, body)
    assert answer == {"prompt": "User: Hi\n\nAssistant:"}
    assert not engine.requests


async def test_tokens_with_their_pieces(serve: Serve) -> None:
    client = await serve(FakeEngine())
    answer = await post(client, "/tokenize", Tokens, {"content": "hé", "with_pieces": True})
    pieces: list[str | list[int]] = ["h", [195], [169]]
    assert answer["tokens"] == [
        {"id": token, "piece": piece} for token, piece in zip(encode("hé"), pieces, strict=True)
    ]
    strings = await post(client, "/v1/tokenize", Tokens, {"prompt": "hi", "return_token_strs": True})
    assert strings["token_strs"] == ["h", "i"]


QUERY: Body = {"query": "b", "documents": ["x", "y", {"text": "z"}]}


async def test_rerank_scores_the_query_after_each_text(serve: Serve) -> None:
    """The fake engine gives token t the log-probability -t / 100, whatever comes before."""
    engine = FakeEngine()
    answer = await post(await serve(engine), "/v1/rerank", Reranked, {**QUERY, "top_n": 2, "return_documents": True})
    assert [list(request.prompt) for request in engine.requests] == [encode(f"{text}\n\nb") for text in "xyz"]
    assert [result["index"] for result in answer["results"]] == [0, 1]
    assert answer["results"][0]["relevance_score"] == pytest.approx(0.3716, abs=1e-4)
    assert answer["results"][0]["document"] == {"text": "x"}
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 12


async def test_rerank_as_text_embeddings_inference(serve: Serve) -> None:
    client = await serve(FakeEngine())
    response = await client.post("/rerank", json={"query": "b", "texts": ["x", "y"], "return_text": True})
    assert [(entry["index"], entry["text"]) for entry in await response.json()] == [(0, "x"), (1, "y")]


@pytest.mark.parametrize("documents", [[], None, 123, [1, 2, 3]])
async def test_rerank_refuses_what_is_no_list_of_texts(serve: Serve, documents: object) -> None:
    client = await serve(FakeEngine())
    error = await error_of(await client.post("/rerank", json={"query": "b", "documents": documents}), 400)
    assert error["param"].startswith("documents")
