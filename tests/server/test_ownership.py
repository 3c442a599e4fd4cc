"""States belong to the key that made them, and other keys can't reach them on any route."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from aiohttp import ClientResponse

from rnn_engine_server.apis import routes
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.routing import Route
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import FrozenState, freeze_state
from rnn_engine_states.named.entry import Retention
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine
from tests.support.http import Body, Client, Serve, error_of
from tests.support.imports import module_name
from tests.support.models import tiny_shape
from tests.support.named_states import make_states, some_state

SHAPE = tiny_shape(vocab=VOCAB_SIZE)
SCOPES = {"ann": Scope.MANAGE, "bob": Scope.MANAGE, "eve": Scope.USE, "op": Scope.ADMIN}
SETTINGS = ServerSettings(auth=AuthSettings(tuple(ApiKey.of(f"{name}-key", name, SCOPES[name]) for name in SCOPES)))
HI: Body = {"messages": [{"role": "user", "content": "Hi"}]}
SECRET = "diary"
NAMED = [route for route in ALL_ROUTES if "{name}" in route.path]
BODIES: dict[str, Body] = {
    "open": {"name": "mine"},
    "fork": {"names": ["mine"]},
    "take": {"name": "mine"},
    "advance": {"input": "x"},
}
MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
KOBOLD = ("/api/v1/generate", "/api/extra/generate/stream")
TEI = ("/embed", "/embed_all")
OTHER_ERRORS = (  # with another shape
    *("/", "/generate", "/generate_stream", "/api/embed", "/api/embeddings"),
    *(*MESSAGES, *KOBOLD, *TEI),
)
STARTING: list[tuple[str, Body]] = [
    ("/v1/chat/completions", HI),
    ("/v1/chat/completions/input_tokens", HI),
    *((path, {**HI, "max_tokens": 5}) for path in MESSAGES),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/completion", {"prompt": "Hi"}),
    ("/", {"inputs": "Hi"}),
    ("/generate", {"inputs": "Hi"}),
    ("/generate_stream", {"inputs": "Hi"}),
    *((path, {"prompt": "Hi"}) for path in KOBOLD),
    *((path, {"inputs": "Hi"}) for path in TEI),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ("/score", {"text_1": "a", "text_2": "b"}),
    ("/pooling", {"input": "a"}),
    ("/v1/apply-template", HI),
    ("/v1/responses", {"input": "Hi"}),
    ("/v1/responses/input_tokens", {"input": "Hi"}),
    ("/v1/choices", {"input": "a", "choices": ["b"]}),
    ("/api/oai/chooses", {"input": "a", "choices": ["b"]}),
    ("/v1/embeddings", {"input": "a"}),
    ("/embedding", {"input": "a"}),
    ("/api/embed", {"input": "a"}),
    ("/api/embeddings", {"prompt": "a"}),
    ("/api/oai/states", {"input": "a"}),
    ("/api/oai/embeddings", {"input": "a"}),
    ("/api/oai/completions", {"prompt": "Hi"}),
    ("/api/oai/chat/completions", HI),
    ("/v1/states", {"name": "mine", "prompt": "a"}),
]


def some_frozen() -> FrozenState:
    return freeze_state(some_state(1, SHAPE), SHAPE, "test", num_tokens=1)


async def object_in(response: ClientResponse) -> Body:
    """Return the object of an answer; an empty one if it is a list or a stream."""
    answer = await response.json() if response.content_type == "application/json" else {}
    return answer if isinstance(answer, dict) else {}


class Clients:
    """The clients of a server, by the names of their keys."""

    def __init__(self, client: Client, engine: FakeEngine) -> None:
        self._client = client
        self.engine = engine

    async def ask(self, name: str, method: str, path: str, json: object = None, status: int = 200) -> Body:
        headers = {"X-Api-Key": f"{name}-key"}
        response = await self._client.request(method, path, json=json, headers=headers)
        if status != 200 and path in OTHER_ERRORS:
            assert response.status == status
            [error] = [value for name, value in (await response.json()).items() if name in ("error", "detail")]
            return {"message": error if isinstance(error, str) else error.get("message") or error["msg"]}
        if status != 200:
            return await error_of(response, status)
        assert response.status == 200, await response.text()
        return await object_in(response)

    async def upload(self, key: str, name: str, data: bytes) -> Body:
        response = await self._client.put(f"/v1/states/{name}", data=data, headers={"X-Api-Key": f"{key}-key"})
        assert response.status == 200, await response.text()
        return dict(await response.json())

    async def names(self, name: str) -> list[str]:
        return [entry["name"] for entry in (await self.ask(name, "GET", "/v1/states"))["data"]]


@pytest.fixture
async def clients(serve: Serve) -> Clients:
    """Return clients of a server. Ann has a state; `poet` is the operator's."""
    engine = FakeEngine()
    clients = Clients(await serve(engine, SETTINGS), engine)
    engine.named.add(LoadedState("tuned", some_state(1, SHAPE)), "poet", "test")
    await clients.ask("ann", "POST", "/v1/states", {"name": SECRET, "prompt": "Dear diary", "owner": "lease"})
    return clients


async def secret_id(clients: Clients) -> str:
    return str((await clients.ask("ann", "GET", f"/v1/states/{SECRET}"))["id"])


def call_of(route: Route, name: str) -> tuple[str, str, Body | None]:
    return route.method, route.path.replace("{name}", name), BODIES.get(route.path.rpartition("/")[2])


@pytest.mark.parametrize("key", ["bob", "eve"])
@pytest.mark.parametrize("route", [route for route in NAMED if route.method != "PUT"], ids=lambda route: route.path)
async def test_another_keys_state_looks_like_one_that_is_missing(clients: Clients, route: Route, key: str) -> None:
    status = 404 if SCOPES[key].includes(route.scope) else 403
    before = clients.engine.named.entries()
    for name in (SECRET, await secret_id(clients)):
        told = []
        missing = "nothing" if name == SECRET else str(uuid.uuid4())
        for asked in (name, missing):
            method, path, body = call_of(route, asked)
            error = await clients.ask(key, method, path, body, status=status)
            told.append({**error, "message": error["message"].replace(asked, "NAME")})
        assert told[0] == told[1]
        assert SECRET not in told[0]["message"]
    assert clients.engine.named.entries() == before


@pytest.mark.parametrize(("path", "body"), STARTING)
async def test_nothing_starts_from_another_keys_state(clients: Clients, path: str, body: Body) -> None:
    ran = len(clients.engine.requests)
    for state in (SECRET, await secret_id(clients), f"ann/{SECRET}"):
        error = await clients.ask("bob", "POST", path, {**body, "state": state}, status=404)
        assert error["message"] == f"state {state!r} does not exist; there are: poet"
    assert len(clients.engine.requests) == ran
    await clients.ask("ann", "POST", path, {**body, "state": SECRET})


async def test_another_keys_state_is_not_compared(clients: Clients) -> None:
    for state in (SECRET, await secret_id(clients), f"ann/{SECRET}"):
        for body in ({"state": state}, {"state": "poet", "other": state}):
            error = await clients.ask("bob", "POST", "/v1/states/compare", body, status=404)
            assert error["message"] == f"state {state!r} does not exist; there are: poet"
    await clients.ask("ann", "POST", "/v1/states/compare", {"state": "poet", "other": SECRET})


async def test_lists_have_what_is_ones_own_and_shared(clients: Clients) -> None:
    await clients.ask("bob", "POST", "/v1/states", {"name": "plan", "prompt": "x"})
    assert await clients.names("ann") == ["poet", SECRET]
    assert await clients.names("bob") == ["poet", "plan"]
    assert await clients.names("eve") == ["poet"]
    assert await clients.names("op") == ["poet", f"ann/{SECRET}", "bob/plan"]


async def test_two_keys_may_use_one_name(clients: Clients) -> None:
    made = await clients.ask("bob", "POST", "/v1/states", {"name": SECRET, "prompt": "x", "owner": "lease"})
    assert (made["state"]["name"], made["state"]["owner"]) == (SECRET, "lease")
    assert made["state"]["id"] != await secret_id(clients)
    await clients.ask("bob", "DELETE", f"/v1/states/{SECRET}")
    error = await clients.ask("bob", "GET", f"/v1/states/{SECRET}", status=404)
    assert error["message"] == f"state {SECRET!r} is gone: it was removed; there are: poet"
    assert await clients.names("ann") == ["poet", SECRET]


async def test_an_upload_under_another_keys_name_is_ones_own(clients: Clients) -> None:
    before = await clients.ask("ann", "GET", f"/v1/states/{SECRET}")
    [named] = [entry for entry in clients.engine.named.entries() if entry.name == f"ann/{SECRET}"]
    data = b"".join(clients.engine.state_files.export("full", SECRET, named.id, named.frozen))
    mine = await clients.upload("bob", SECRET, data)
    assert (mine["name"], mine["id"] != before["id"]) == (SECRET, True)
    await clients.ask("bob", "POST", f"/v1/states/{SECRET}/advance", {"input": "x"})
    assert await clients.ask("ann", "GET", f"/v1/states/{SECRET}") == before


async def test_ones_own_states_are_as_without_keys(clients: Clients) -> None:
    forked = await clients.ask("ann", "POST", f"/v1/states/{SECRET}/fork", {"names": ["a", "b"]})
    assert [(entry["name"], entry["owner"]) for entry in forked["data"]] == [("a", "a"), ("b", "b")]
    taken = await clients.ask("ann", "POST", "/v1/states/a/take", {"name": "c", "owner": "x"})
    assert (taken["name"], taken["owner"], taken["id"]) == ("c", "x", forked["data"][0]["id"])
    error = await clients.ask("ann", "GET", "/v1/states/a", status=404)
    assert "it was renamed to 'c'" in error["message"]
    advanced = await clients.ask("ann", "POST", "/v1/states/c/advance", {"input": "y"})
    assert (advanced["state"]["name"], advanced["state"]["read_only"]) == ("c", False)
    saved = await clients.ask("ann", "POST", "/v1/completions", {"prompt": "x", "state": "c", "save_as": "c"})
    assert (saved["saved_state"]["name"], saved["saved_state"]["id"]) == ("c", taken["id"])
    assert await clients.names("ann") == ["poet", SECRET, "b", "c"]


@pytest.mark.parametrize("key", ["ann", "op"])
async def test_shared_states_are_read_by_all_and_changed_by_the_operator(clients: Clients, key: str) -> None:
    """`poet` is a file, which nobody changes; `house` is of a time without keys."""
    poet = clients.engine.named.get("poet")
    clients.engine.named.put("house", poet.frozen, Retention(), source="test")
    shown = await clients.ask(key, "GET", "/v1/states/house")
    assert shown["read_only"] is (key == "ann")
    await clients.ask(key, "POST", "/v1/chat/completions", {**HI, "state": "house", "save_as": "talk"})
    await clients.ask(key, "POST", "/v1/states/house/fork", {"names": ["copy"]})
    await clients.ask(key, "GET", "/v1/states/house/export")
    status = 400 if key == "ann" else 200
    body = {**HI, "state": "house", "save_as": "house"}
    ran = len(clients.engine.requests)
    await clients.ask(key, "POST", "/v1/chat/completions", body, status=status)
    assert len(clients.engine.requests) == ran + (key == "op")
    for method, path, sent in (
        ("POST", "/v1/states/house/advance", {"input": "x"}),
        ("POST", "/v1/states/house/take", {"name": "home"}),
        ("DELETE", "/v1/states/home" if key == "op" else "/v1/states/house", None),
    ):
        error = await clients.ask(key, method, path, sent, status=status)
        if key == "ann":
            assert "'house' is not allowed; expected a state that can be changed" in error["message"]
    await clients.ask(key, "DELETE", "/v1/states/poet", status=400)


async def test_a_name_that_is_shared_is_taken(clients: Clients) -> None:
    refused = "'poet' is not allowed; expected a name that is free"
    for path, body in (
        ("/v1/states", {"name": "poet", "prompt": "x"}),
        ("/v1/chat/completions", {**HI, "save_as": "poet"}),
        (f"/v1/states/{SECRET}/fork", {"names": ["new", "poet"]}),
        (f"/v1/states/{SECRET}/take", {"name": "poet"}),
    ):
        assert refused in (await clients.ask("ann", "POST", path, body, status=400))["message"]
    assert await clients.names("ann") == ["poet", SECRET]


@pytest.mark.parametrize("field", ["name", "owner"])
async def test_nobody_names_another_namespace(clients: Clients, field: str) -> None:
    body = {"name": "mine", "prompt": "x", field: "ann/mine"}
    for key in ("bob", "op"):
        error = await clients.ask(key, "POST", "/v1/states", body, status=400)
        assert f"{field}: 'ann/mine' is not allowed" in error["message"]


async def test_a_key_that_only_uses_keeps_nothing(clients: Clients) -> None:
    ran = len(clients.engine.requests)
    error = await clients.ask("eve", "POST", "/v1/chat/completions", {**HI, "save_as": "mine"}, status=403)
    assert (error["type"], "needs 'manage'" in error["message"]) == ("permission_error", True)
    assert len(clients.engine.requests) == ran
    await clients.ask("eve", "POST", "/v1/chat/completions", {**HI, "state": "poet"})


async def test_the_operator_finds_every_state_by_its_whole_name(clients: Clients) -> None:
    for name in (f"ann%2F{SECRET}", await secret_id(clients)):
        assert (await clients.ask("op", "GET", f"/v1/states/{name}"))["name"] == f"ann/{SECRET}"
    await clients.ask("op", "DELETE", f"/v1/states/ann%2F{SECRET}")
    assert await clients.names("ann") == ["poet"]


async def test_the_operator_shares_states(clients: Clients) -> None:
    body = {"name": "house", "prompt": "x", "shared": True}
    for key in ("ann", "eve"):
        assert (await clients.ask(key, "POST", "/v1/states", body, status=403))["type"] == "permission_error"
        saved = {"name": "house", "shared": True}
        await clients.ask(key, "POST", "/v1/chat/completions", {**HI, "save_as": saved}, status=403)
    await clients.ask("op", "POST", "/v1/states", body)
    await clients.ask("op", "POST", "/v1/states", {"name": "own", "prompt": "y", "owner": "x"})
    await clients.ask("op", "POST", "/v1/states/own/take", {"shared": True, "owner": "y"})
    assert await clients.names("bob") == ["poet", "house", "own"]
    shown = await clients.ask("bob", "GET", "/v1/states/own")
    assert (shown["owner"], shown["read_only"]) == ("y", True)
    taken = {"name": SECRET, "prompt": "x"}
    await clients.ask("op", "POST", "/v1/states", {**taken, "shared": True})  # hidden from ann by her own state
    assert (await clients.ask("ann", "GET", f"/v1/states/{SECRET}"))["read_only"] is False
    assert (await clients.ask("bob", "GET", f"/v1/states/{SECRET}"))["read_only"] is True


async def test_a_key_is_told_of_its_own_room(clients: Clients) -> None:
    seen = {key: await clients.ask(key, "GET", "/v1/states") for key in ("ann", "bob", "op")}
    assert [seen[key]["bytes"] > 0 for key in seen] == [True, False, True]
    assert seen["ann"]["capacity"] == seen["op"]["capacity"] // 4


async def test_without_keys_everything_belongs_to_everybody(serve: Serve) -> None:
    engine = FakeEngine()
    clients = Clients(await serve(engine), engine)
    await clients.ask("", "POST", "/v1/states", {"name": "a", "prompt": "x"})
    await clients.ask("", "POST", "/v1/states/a/advance", {"input": "x"})
    engine.named.put("ann/b", engine.named.get("a").frozen, Retention(), source="test")  # of a time with keys
    assert await clients.names("") == ["a", "ann/b"]
    await clients.ask("", "DELETE", "/v1/states/ann%2Fb")


async def test_the_default_state_is_changed_by_the_operator_alone(serve: Serve, tmp_path: Path) -> None:
    engine = FakeEngine(named=make_states(tmp_path, shape=SHAPE))
    clients = Clients(await serve(engine, SETTINGS), engine)
    house = engine.named.put("house", some_frozen(), Retention(persistent=True), source="test")
    engine.named.set_default("house")
    await clients.ask("ann", "POST", "/v1/states/house/advance", {"input": "x"}, status=400)
    assert engine.named.default == house
    await clients.ask("ann", "POST", "/v1/chat/completions", HI)
    used = engine.requests[-1].initial_state
    assert (used is not None, used and used.root) == (True, house.frozen.digest)
    await clients.ask("op", "POST", "/v1/states/house/advance", {"input": "x"})
    assert engine.named.default != house


@pytest.mark.parametrize(("path", "body"), STARTING)
async def test_the_file_of_another_keys_state_is_not_read(serve: Serve, tmp_path: Path, path: str, body: Body) -> None:
    engine = FakeEngine(named=make_states(tmp_path, shape=SHAPE))
    clients = Clients(await serve(engine, SETTINGS), engine)
    await clients.ask("ann", "POST", "/v1/states", {"name": SECRET, "prompt": "x", "persistent": True})
    ran = len(engine.requests)
    [file] = tmp_path.glob("*.state")
    error = await clients.ask("bob", "POST", path, {**body, "state": {"path": file.name}}, status=404)
    assert error["message"] == f"state.path: no state file {file.name!r} in the folder of state files"
    assert len(engine.requests) == ran


async def test_ownership_survives_a_restart(serve: Serve, tmp_path: Path) -> None:
    engine = FakeEngine(named=make_states(tmp_path, shape=SHAPE))
    clients = Clients(await serve(engine, SETTINGS), engine)
    await clients.ask("ann", "POST", "/v1/states", {"name": SECRET, "prompt": "x", "persistent": True})
    again = FakeEngine(named=make_states(tmp_path, shape=SHAPE))
    clients = Clients(await serve(again, SETTINGS), again)
    assert (await clients.names("ann"), await clients.names("bob")) == ([SECRET], [])


def test_routes_reach_the_engine_as_whoever_asks() -> None:
    """Routes that always answer are the exception: they check no key, and show nothing that belongs to a key."""
    folder = Path(routes.__file__).parent
    whole = {
        module_name(path.relative_to(folder.parents[1]))
        for path in folder.rglob("*.py")
        if ".open_engine" in path.read_text()
    }
    assert whole, "no module has an engine as nobody's"
    assert whole <= {route.handler.__module__ for route in ALL_ROUTES if route.always}
