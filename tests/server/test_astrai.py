"""AstrAI's statistics."""

from __future__ import annotations

from rnn_engine_server.apis.astrai import SchedulerStats
from rnn_engine_server.apis.openai.schemas import Completion
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve, check_shape, post


async def stats_of(client: Client, **headers: str) -> Body:
    answer: Body = await (await client.get("/stats", headers=headers)).json()
    check_shape(SchedulerStats, answer)
    return answer


async def test_before_anything_has_run_there_are_no_means(serve: Serve) -> None:
    assert await stats_of(await serve(FakeEngine())) == {
        "total_tasks": 0,
        "total_tokens": 0,
        "active_tasks": 0,
        "waiting_queue": 0,
    }


async def test_what_was_run_is_told(serve: Serve) -> None:
    engine = FakeEngine(lambda request: "four", cached_tokens=1, queue_seconds=0.25, prefill_seconds=0.5)
    engine.counted.generated_tokens = 9
    client = await serve(engine)
    response = await client.post("/v1/completions", json={"prompt": "abc"}, headers={"X-Request-Id": "mine"})
    assert response.status == 200
    answer = await stats_of(client)
    assert (answer["total_tasks"], answer["total_tokens"], answer["active_tasks"]) == (1, 9, 0)
    [task] = answer["recent_tasks"]
    assert (task["task_id"], task["input_tokens"], task["output_tokens"]) == ("mine", 3, 4)
    assert (task["queue_wait_ms"], task["ttft_ms"], task["prefill_tps"]) == (250.0, 750.0, 4.0)
    assert task["e2e_latency_ms"] >= 0


async def test_running_requests_are_counted(serve: Serve) -> None:
    engine = FakeEngine(hold=0)
    client = await serve(engine)
    async with client.post("/v1/completions", json={"prompt": "a", "stream": True, "echo": True}) as response:
        await engine.held.wait()
        answer = await stats_of(client)
        assert (answer["total_tasks"], answer["active_tasks"]) == (1, 1)
        engine.release.set()
        await response.read()


async def test_the_last_ones_are_kept_and_each_key_sees_its_own(serve: Serve) -> None:
    keys = (ApiKey.of("a", "ann", Scope.USE), ApiKey.of("b", "bob", Scope.USE), ApiKey.of("op", "op", Scope.ADMIN))
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings(keys)))
    for key in ("a", "b"):
        body = {"prompt": "x", "max_tokens": 1, "n": 100}
        response = await client.post("/v1/completions", json=body, headers={"X-Api-Key": key})
        assert response.status == 200
    counts = [len((await stats_of(client, **{"X-Api-Key": key}))["recent_tasks"]) for key in ("a", "b", "op")]
    assert counts == [28, 100, 128]


async def test_without_keys_all_are_seen(serve: Serve) -> None:
    client = await serve(FakeEngine())
    await post(client, "/v1/completions", Completion, {"prompt": ["a", "b"]})
    assert len((await stats_of(client))["recent_tasks"]) == 2
