"""Several models in one server: each request reaches the model that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from pytest_aiohttp.plugin import AiohttpClient

from rnn_engine.errors import DeviceMemoryError, ModelNotFoundError, UnavailableError
from rnn_engine.forward import Progress
from rnn_engine.interface import EngineLike
from rnn_engine.telemetry import Health
from rnn_engine_server.apis.common.owned import ListOf
from rnn_engine_server.apis.engine.status import ServerStatus
from rnn_engine_server.apis.openai.models import HealthBody, ModelEntry
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_server.models.orders import LoadOrder
from rnn_engine_server.models.registry import MODELS, ModelRegistry
from tests.support.fake_engine import FakeEngine
from tests.support.http import AT_ONCE, Body, Client, Through, check_shape, error_of

HI: Body = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"


class Loads:
    """A loader that makes a new engine for each load of a model."""

    def __init__(self, name: str, hold: int | None = None) -> None:
        self.name = name
        self.hold = hold
        self.engines: list[FakeEngine] = []
        self.error: Exception | None = None
        self.allowed = asyncio.Event()
        self.allowed.set()

    async def __call__(self, progress: Progress) -> FakeEngine:
        progress("layers", 3, 12)
        await self.allowed.wait()
        if self.error is not None:
            raise self.error
        self.engines.append(FakeEngine(lambda request: f" I am {self.name}.", model=self.name, hold=self.hold))
        return self.engines[-1]

    @property
    def last(self) -> FakeEngine:
        return self.engines[-1]


async def registry_of(*loads: Loads, default: str, through: Through | None = None) -> ModelRegistry:
    by_name = {load.name: load for load in loads}
    orders = [LoadOrder(load.name, Path(load.name)) for load in loads]

    async def load_one(name: str, progress: Progress) -> EngineLike:
        engine = await by_name[name](progress)
        return engine if through is None else await through(engine)

    return await ModelRegistry.load(orders, default, lambda order: partial(load_one, order.name))


Start = Callable[..., Awaitable[Client]]


@pytest.fixture
def start(aiohttp_client: AiohttpClient, through: Through) -> Start:
    """Return a function that starts a server over given models; the last one is the default."""

    async def begin(*loads: Loads, settings: ServerSettings | None = None) -> Client:
        models = await registry_of(*loads, default=loads[-1].name, through=through)
        return await aiohttp_client(make_app(models, settings or ServerSettings()))

    return begin


async def answer_of(client: Client, body: Body, path: str = CHAT) -> tuple[str, str]:
    """Return the model that answered, by the answer's text and by its `model`."""
    response = await client.post(path, json={**HI, **body})
    assert response.status == 200, await response.text()
    answer = await response.json()
    return answer["choices"][0]["message"]["content"], answer["model"]


async def test_the_model_of_a_body_answers_and_the_default_without_one(start: Start) -> None:
    client = await start(Loads("a"), Loads("b"))
    assert await answer_of(client, {"model": "a"}) == ("I am a.", "a")
    assert await answer_of(client, {"model": "b"}) == ("I am b.", "b")
    for body in ({}, {"model": None}, {"model": ""}):
        assert await answer_of(client, body) == ("I am b.", "b")


async def test_an_unknown_model_is_404_with_those_that_there_are(start: Start) -> None:
    client = await start(Loads("a"), Loads("b"))
    for path, body in ((CHAT, HI), ("/v1/completions", {"prompt": "Hi"}), ("/tokenize", {"content": "Hi"})):
        error = await error_of(await client.post(path, json={**body, "model": "gpt-3.5-turbo"}), 404)
        assert error == {
            "message": "model: there is no model 'gpt-3.5-turbo'; this server has 'a', 'b'",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    assert (await client.get("/v1/models/c")).status == 404
    assert (await client.get("/v1/states", params={"model": "c"})).status == 404


async def test_any_name_means_the_default_under_ai00s_paths_and_where_the_operator_says_so(start: Start) -> None:
    client = await start(Loads("a"), Loads("b"))
    assert await answer_of(client, {"model": "rwkv"}, "/api/oai/chat/completions") == ("I am b.", "b")
    client = await start(Loads("a"), Loads("b"), settings=ServerSettings(any_model=True))
    assert await answer_of(client, {"model": "gpt-3.5-turbo"}) == ("I am b.", "b")
    assert await answer_of(client, {"model": "a"}) == ("I am a.", "a")


async def test_a_single_model_answers_for_any_name_unless_the_operator_says_otherwise(start: Start) -> None:
    client = await start(Loads("a"))
    for path in (CHAT, "/v1/completions", "/v1/messages"):
        assert (await client.post(path, json={**HI, "prompt": "Hi", "model": "gpt-5", "max_tokens": 2})).status == 200
    assert await answer_of(client, {"model": "gpt-5"}) == ("I am a.", "a")
    for settings in (ServerSettings(any_model=False), ServerSettings(strict=True)):
        client = await start(Loads("a"), settings=settings)
        assert (await client.post(CHAT, json={**HI, "model": "gpt-5"})).status == 404


async def test_states_belong_to_a_model_which_the_query_names(start: Start) -> None:
    client = await start(Loads("a"), Loads("b"))
    created = await client.post("/v1/states?model=a", json={"name": "mine", "prompt": "Hi"})
    assert created.status == 200, await created.text()
    assert [len((await (await client.get(f"/v1/states?model={name}")).json())["data"]) for name in "ab"] == [1, 0]
    assert (await client.get("/v1/states/mine")).status == 404
    assert (await client.get("/v1/states/mine?model=a")).status == 200


async def test_models_are_listed_with_their_status(start: Start) -> None:
    client = await start(Loads("a"), Loads("b"))
    listed = await (await client.get("/v1/models")).json()
    check_shape(ListOf[ModelEntry], listed)
    assert [(entry["id"], entry["meta"]["status"]) for entry in listed["data"]] == [("a", "loaded"), ("b", "loaded")]
    assert listed["data"][0]["meta"]["state_bytes"] > 0
    assert "record" in listed["data"][0]["meta"]["chat_template"]


async def test_metrics_tell_the_models_apart(start: Start) -> None:
    client = await start(Loads("a"), Loads("b"))
    await answer_of(client, {"model": "a"})
    lines = (await (await client.get("/metrics")).text()).splitlines()
    assert 'rnn_engine_requests_total{model="a",outcome="stop"} 1.0' in lines
    assert 'rnn_engine_requests_total{model="b",outcome="stop"} 0.0' in lines
    assert sum(line.startswith("# TYPE rnn_engine_requests_total") for line in lines) == 1


@AT_ONCE
async def test_health_is_that_of_the_first_that_is_not_well(start: Start) -> None:
    loads = Loads("a"), Loads("b")
    client = await start(*loads)
    loads[0].last.condition = Health("recovering", "the device was lost")
    body = await (await client.get("/health")).json()
    check_shape(HealthBody, body)
    assert (body["status"], body["model"], body["models"]) == ("recovering", "b", {"a": "loaded", "b": "loaded"})
    for query, status in (("", 503), ("?model=a", 503), ("?model=b", 200), ("?model=c", 404)):
        assert (await client.get(f"/health/ready{query}")).status == status, query


async def test_an_idle_model_is_freed_and_loaded_again_for_its_next_request(start: Start) -> None:
    load = Loads("a")
    client = await start(load, Loads("b"))
    models = client.app[MODELS]
    await models.unload_idle(10, clock=lambda: models.find("a").used + 9)
    assert models.find("a").status == "loaded"
    await models.unload_idle(10, clock=lambda: models.find("a").used + 20)
    assert load.last.closed
    listed = await (await client.get("/v1/models")).json()
    assert [entry["meta"]["status"] for entry in listed["data"]] == ["unloaded", "unloaded"]
    assert (await client.get("/health/ready")).status == 200
    assert await answer_of(client, {"model": "a"}) == ("I am a.", "a")
    assert len(load.engines) == 2
    assert models.find("b").status == "unloaded"


async def test_requests_that_come_together_wait_for_one_load() -> None:
    load = Loads("a")
    models = await registry_of(load, default="a")
    await models.find("a").unload(withdraw=False)
    load.allowed.clear()
    waiting = [asyncio.create_task(models.find("a").acquire(60)) for _ in range(3)]
    await asyncio.sleep(0)
    load.allowed.set()
    assert await asyncio.gather(*waiting) == [load.last] * 3
    assert (len(load.engines), models.find("a").running) == (2, 3)


async def test_a_model_that_is_in_use_is_freed_when_its_last_request_ends(start: Start) -> None:
    load = Loads("a", hold=2)
    client = await start(load)
    model = client.app[MODELS].default
    async with client.post(CHAT, json={**HI, "stream": True}) as response:
        await load.last.held.wait()
        await client.app[MODELS].unload_idle(0)
        assert model.status == "loaded"
        unloading = asyncio.create_task(model.unload(withdraw=False))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (model.status, load.last.closed) == ("unloading", False)
        assert "rnn_engine_slots" in await (await client.get("/metrics")).text()
        load.last.release.set()
        assert "[DONE]" in await response.text()
    await unloading
    assert (model.status, load.engines[0].closed) == ("unloaded", True)


async def test_a_request_does_not_wait_for_ever_for_its_model(start: Start) -> None:
    load = Loads("a")
    client = await start(load, settings=ServerSettings(limits=Limits(max_load_seconds=0)))
    await client.app[MODELS].default.unload(withdraw=False)
    load.allowed.clear()
    error = await error_of(await client.post(CHAT, json=HI), 503)
    assert error["message"] == "the model 'a' was not loaded within 0 s"


async def test_how_far_a_load_is(start: Start) -> None:
    first, load = Loads("a"), Loads("b")
    client = await start(first, load)
    await client.app[MODELS].find("b").unload(withdraw=False)
    load.allowed.clear()
    waiting = asyncio.create_task(client.app[MODELS].find("b").acquire(60))
    while client.app[MODELS].find("b").progress is None:
        await asyncio.sleep(0)
    body = await (await client.get("/v1/engine")).json()
    check_shape(ServerStatus, body)
    assert (body["models"], body["loading"]) == (
        {"a": "loaded", "b": "loading"},
        {"b": {"what": "layers", "done": 3, "total": 12}},
    )
    load.allowed.set()
    await waiting
    assert (await (await client.get("/v1/engine")).json())["loading"] == {}


async def test_a_model_that_can_not_be_loaded_again(start: Start) -> None:
    load = Loads("a")
    client = await start(load, Loads("b"))
    await client.app[MODELS].find("a").unload(withdraw=False)
    load.error = DeviceMemoryError("the device has no room")
    error = await error_of(await client.post(CHAT, json={**HI, "model": "a"}), 503)
    assert error["message"] == "the model 'a' can't be loaded: the device has no room"
    load.error = None
    assert await answer_of(client, {"model": "a"}) == ("I am a.", "a")


async def test_a_withdrawn_model_waits_for_an_order_to_load() -> None:
    load = Loads("a")
    models = await registry_of(load, default="a")
    await models.default.unload(withdraw=True)
    with pytest.raises(UnavailableError, match="the model 'a' is unloaded"):
        await models.default.acquire(60)
    assert models.health().status == "closing"
    assert await models.default.load() is load.last
    assert await models.default.acquire(60) is load.last


async def test_closing_ends_a_load_and_frees_what_is_loaded() -> None:
    first, second = Loads("a"), Loads("b")
    models = await registry_of(first, second, default="a")
    await models.find("b").unload(withdraw=False)
    second.allowed.clear()
    waiting = asyncio.create_task(models.find("b").acquire(60))
    await asyncio.sleep(0)
    await models.close()
    assert first.last.closed
    with pytest.raises(UnavailableError, match="the model 'b' is closed"):
        await waiting
    for name in ("a", "b", "c"):
        with pytest.raises(UnavailableError, match="can't be loaded again"):
            await models.put(LoadOrder(name, Path(name)))
    assert (len(first.engines), len(second.engines)) == (1, 1)


async def test_a_request_that_leaves_does_not_end_the_load_for_others() -> None:
    load = Loads("a")
    models = await registry_of(load, default="a")
    await models.default.unload(withdraw=False)
    load.allowed.clear()
    leaving, waiting = [asyncio.create_task(models.default.acquire(60)) for _ in range(2)]
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait((leaving,))
    load.allowed.set()
    assert leaving.cancelled()
    assert await waiting is load.last


class Orders:
    """A loader that loads what an order describes, but no file called `bad`."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.allowed = asyncio.Event()
        self.registry = ModelRegistry(lambda order: partial(self._load, order))

    async def _load(self, order: LoadOrder, _: Progress) -> EngineLike:
        self.begun.set()
        await self.allowed.wait()
        if order.path.name == "bad":
            raise DeviceMemoryError("the device has no room")
        return FakeEngine(model=order.path.name)


@pytest.mark.parametrize("name", ["put", "replace_default"])
async def test_a_client_that_leaves_during_a_reload_does_not_undo_it(name: str) -> None:
    orders = Orders()
    models = orders.registry
    orders.allowed.set()
    await models.put(LoadOrder("a", Path("old")))
    for event in (orders.begun, orders.allowed):
        event.clear()
    replacing = asyncio.create_task(getattr(models, name)(LoadOrder("a", Path("new"))))
    await orders.begun.wait()
    replacing.cancel()
    await asyncio.wait((replacing,))
    orders.allowed.set()
    engine = await models.default.acquire(60)
    assert (engine.info.model, models.default.order.path) == ("new", Path("new"))


async def test_a_model_is_put_after_a_load_of_its_name_that_fails() -> None:
    orders = Orders()
    models = orders.registry
    first = asyncio.create_task(models.put(LoadOrder("a", Path("bad"))))
    await orders.begun.wait()
    second = asyncio.create_task(models.put(LoadOrder("a", Path("good"))))
    for _ in range(5):
        await asyncio.sleep(0)
    orders.allowed.set()
    with pytest.raises(DeviceMemoryError):
        await first
    assert await second is models.find("a")
    assert (await models.default.acquire(60)).info.model == "good"


async def test_a_default_that_there_is_not() -> None:
    load = Loads("a")
    with pytest.raises(ModelNotFoundError, match="there is no model 'b'; this server has 'a'"):
        await registry_of(load, default="b")
    assert load.last.closed


async def test_no_model_stays_loaded_where_one_can_not_be() -> None:
    first, second = Loads("a"), Loads("b")
    second.error = DeviceMemoryError("the device has no room")
    with pytest.raises(DeviceMemoryError):
        await registry_of(first, second, default="a")
    assert first.last.closed


async def test_embeddings_and_choices_say_their_model(start: Start) -> None:
    client = await start(Loads("a"), Loads("b"))
    response = await client.post("/v1/embeddings", json={"input": "Hi", "model": "a"})
    assert (await response.json())["model"] == "a"
