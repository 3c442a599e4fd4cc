"""realizar's routes."""

from __future__ import annotations

from rnn_engine_server.apis.realizar import BatchCompletion, BatchTokens, GpuStatus, WarmUp
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import Serve, check_shape, error_of, post


async def test_a_batch_runs_side_by_side(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda request: f"{len(request.prompt)}!", num_slots=3)
    body = {"prompts": ["a", "bc", "def"], "max_tokens": 9, "temperature": 0, "top_k": 1, "stop": ["!"]}
    answer = await post(await serve(engine), "/v1/batch/completions", BatchCompletion, body)
    assert [(result["index"], result["text"]) for result in answer["results"]] == [(0, "1"), (1, "2"), (2, "3")]
    assert [result["prompt_tokens"] for result in answer["results"]] == [1, 2, 3]
    assert engine.most_active == 3
    stats = answer["stats"]
    assert (stats["batch_size"], stats["gpu_used"], stats["total_tokens"]) == (3, False, 3)
    assert stats["processing_time_ms"] >= 0


async def test_a_batch_is_not_streamed(serve: Serve) -> None:
    response = await (await serve(FakeEngine())).post("/v1/batch/completions", json={"prompts": ["a"], "stream": True})
    assert (await error_of(response, 400))["param"] == "stream"


async def test_tokens_of_several_texts(serve: Serve) -> None:
    answer = await post(await serve(FakeEngine()), "/v1/batch/tokenize", BatchTokens, {"texts": ["ab", ""]})
    assert answer == {
        "results": [{"token_ids": encode("ab"), "num_tokens": 2}, {"token_ids": [], "num_tokens": 0}],
    }


async def test_warming_up_runs_one_token(serve: Serve) -> None:
    for special, first in ({}, 0), ({"<|end|>": 5}, 5):
        engine = FakeEngine(special_tokens=special)
        answer = await post(await serve(engine), "/v1/gpu/warmup", WarmUp, {})
        assert answer["memory_bytes"] is None
        [request] = engine.requests
        assert (list(request.prompt), request.max_tokens) == ([first], 0)


async def test_status_of_the_device(serve: Serve) -> None:
    answer = await (await (await serve(FakeEngine())).get("/v1/gpu/status")).json()
    check_shape(GpuStatus, answer)
    assert (answer["cache_ready"], answer["gpu_used"], answer["batch_threshold"]) == (True, False, 2)
