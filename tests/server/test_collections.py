"""Collections of documents over HTTP: what is added, listed, found, removed and refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import ClientResponse

from rnn_engine.errors import OverloadedError, StateError
from rnn_engine.requests import GenerateRequest
from rnn_engine_server.apis.common.owned import PageOf, PartOf
from rnn_engine_server.apis.engine.collections import (
    CollectionDeleted,
    CollectionEntry,
    DocumentEntry,
    DocumentsAdded,
    DocumentsRemoved,
    QueryAnswer,
)
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import AuthSettings, Limits, ServerSettings
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine
from tests.support.http import Body, Client, Serve, check_shape, error_of, post
from tests.support.models import tiny_shape
from tests.support.named_states import make_states

ANIMALS: Body = {
    "documents": [
        {"id": "cat", "text": "A cat has four legs.", "metadata": {"page": 1}},
        {"id": "a/spider", "text": "A spider has eight legs."},
        "A snake has no legs.",
    ]
}


async def get(client: Client, path: str, kind: type[object]) -> Body:
    return await body_of(await client.get(path), kind)


async def body_of(response: ClientResponse, kind: type[object]) -> Body:
    assert response.status == 200, await response.text()
    body: Body = await response.json()
    check_shape(kind, body)
    return body


async def filled(client: Client, name: str = "animals") -> list[str]:
    """Make a collection of three animals, and return their ids."""
    await post(client, "/v1/collections", CollectionEntry, {"name": name})
    ids: list[str] = (await post(client, f"/v1/collections/{name}/documents", DocumentsAdded, ANIMALS))["ids"]
    return ids


def prompt_of(request: GenerateRequest) -> str:
    return FakeEngine().detokenize(request.prompt).decode()


async def test_documents_are_added_listed_and_removed(serve: Serve) -> None:
    client = await serve(FakeEngine())
    ids = await filled(client)
    assert ids[:2] == ["cat", "a/spider"]
    entry = await get(client, "/v1/collections/animals", CollectionEntry)
    assert (entry["documents"], entry["model"], entry["persistent"]) == (3, "fake", False)
    assert (await get(client, "/v1/collections", PageOf[CollectionEntry]))["data"] == [entry]
    page = await get(client, "/v1/collections/animals/documents?limit=1&after=cat", PartOf[DocumentEntry])
    spider = {"id": "a/spider", "text": "A spider has eight legs.", "metadata": {}, "tokens": 24}
    assert (page["data"], page["has_more"]) == ([spider], True)
    assert await get(client, "/v1/collections/animals/documents/a%2Fspider", DocumentEntry) == spider
    removed = await body_of(await client.delete("/v1/collections/animals/documents/a%2Fspider"), DocumentsRemoved)
    assert removed["ids"] == ["a/spider"]
    body: Body = {"ids": ["a/spider", ids[2]]}
    removed = await post(client, "/v1/collections/animals/documents/delete", DocumentsRemoved, body)
    assert removed["ids"] == [ids[2]]
    page = await get(client, "/v1/collections/animals/documents", PartOf[DocumentEntry])
    assert [(each["id"], each["metadata"]) for each in page["data"]] == [("cat", {"page": 1})]
    await body_of(await client.delete("/v1/collections/animals"), CollectionDeleted)
    assert (await get(client, "/v1/collections", PageOf[CollectionEntry]))["data"] == []


async def test_a_query_reranks_the_nearest(serve: Serve) -> None:
    """The fake engine's states are random, but the same for the same text, which is then nearest to itself."""
    engine = FakeEngine()
    client = await serve(engine)
    await filled(client)
    engine.requests.clear()
    body: Body = {"query": "A cat has four legs.", "top_n": 1, "candidates": 2}
    answer = await post(client, "/v1/collections/animals/query", QueryAnswer, body)
    [hit] = answer["results"]
    assert hit["score"] == hit["relevance"]
    assert answer["method"] == "yes_no"
    vector, *asked = engine.requests
    assert prompt_of(vector) == "A cat has four legs."
    assert len(asked) == 4  # Yes and No after two candidates
    assert answer["tokens_run"] == answer["usage"]["prompt_tokens"]
    answer = await post(client, "/v1/collections/animals/query", QueryAnswer, {**body, "rerank": False})
    [hit] = answer["results"]
    assert (hit["id"], hit["metadata"], hit["relevance"]) == ("cat", {"page": 1}, None)
    assert hit["score"] == hit["similarity"] == pytest.approx(1.0, abs=1e-6)
    assert (answer["method"], answer["tokens_run"]) == (None, len("A cat has four legs."))


async def test_a_document_is_run_up_to_where_all_prompts_about_it_agree(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await filled(client)
    begins = [prompt_of(request) for request in engine.requests[3:]]
    assert [begin.rpartition("Document: ")[2] for begin in begins] == [
        "A cat has four legs.\nQuery:",
        "A spider has eight legs.\nQuery:",
        "A snake has no legs.\nQuery:",
    ]
    engine.requests.clear()
    await post(client, "/v1/collections/animals/query", QueryAnswer, {"query": "How many?"})
    asked = {prompt_of(request) for request in engine.requests[1:]}
    assert len(asked) == 6
    assert all(any(prompt.startswith(begin) for begin in begins) for prompt in asked)


async def test_an_empty_collection_finds_nothing(serve: Serve) -> None:
    client = await serve(FakeEngine())
    await post(client, "/v1/collections", CollectionEntry, {"name": "empty"})
    assert (await post(client, "/v1/collections/empty/query", QueryAnswer, {"query": "a"}))["results"] == []


@pytest.mark.parametrize(
    ("documents", "param", "message"),
    [
        ([], "documents", "a list of texts, or of objects with a `text`, at least one"),
        (["a"] * 100_000, "documents", "100000 is not allowed; expected at most 2048 inputs (max_inputs)"),
        (
            [{"id": "b", "text": "x"}, {"id": "b", "text": "y"}],
            "documents",
            "'b' is not allowed; expected ids that are all different",
        ),
        (["a", ""], "documents.1.text", "a text that is not empty"),
        ([{"id": "cat", "text": "x"}], "documents", "the collection has a document 'cat' already"),
        ([{"id": 3, "text": "x"}], "documents.0.id", "a text, or null"),
        ([{"text": "x", "metadata": []}], "documents.0.metadata", "an object, or null"),
        ([{"text": "x", "metdata": {}}], "documents.0", "a text, or an object such as"),
        ([{"id": "a"}], "documents.0", "a text, or an object such as"),
    ],
)
async def test_bad_documents_are_refused(serve: Serve, documents: list[object], param: str, message: str) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await filled(client)
    engine.requests.clear()
    response = await client.post("/v1/collections/animals/documents", json={"documents": documents})
    error = await error_of(response, 400)
    assert error["param"] == param
    assert message in error["message"]
    assert engine.requests == []
    assert (await get(client, "/v1/collections/animals", CollectionEntry))["documents"] == 3


async def test_documents_are_replaced_if_that_is_wanted(serve: Serve) -> None:
    client = await serve(FakeEngine())
    await filled(client)
    body: Body = {"documents": [{"id": "cat", "text": "A cat sleeps."}], "replace": True}
    await post(client, "/v1/collections/animals/documents", DocumentsAdded, body)
    page = await get(client, "/v1/collections/animals/documents", PartOf[DocumentEntry])
    assert [each["text"] for each in page["data"]][-1] == "A cat sleeps."
    assert len(page["data"]) == 3


async def test_limits_are_named(serve: Serve) -> None:
    limits = Limits(max_collections=1, max_collection_documents=5, max_prompt_tokens=200)
    client = await serve(FakeEngine(), ServerSettings(limits=limits))
    await filled(client)
    error = await error_of(await client.post("/v1/collections", json={"name": "more"}), 400)
    assert "at most 1 collections (max_collections)" in error["message"]
    path = "/v1/collections/animals"
    for documents, message in (
        (["a", "b", "c"], "at most 5 documents in a collection"),
        (["a" * 101], "at most 200 tokens"),
    ):
        error = await error_of(await client.post(f"{path}/documents", json={"documents": documents}), 400)
        assert message in error["message"]
    for _ in range(2):
        await post(client, f"{path}/documents", DocumentsAdded, {"documents": ["a" * 90]})
    error = await error_of(await client.post(f"{path}/query", json={"query": "x" * 8}), 400)
    assert error["message"].startswith("candidates: 20 is not allowed; expected as few as have 200 tokens together")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/collections/other", 404),
        ("DELETE", "/v1/collections/other", 404),
        ("GET", "/v1/collections/other/documents", 404),
        ("GET", "/v1/collections/animals/documents?after=dog", 404),
        ("GET", "/v1/collections/animals/documents?limit=1001", 400),
        ("GET", "/v1/collections/animals/documents/dog", 404),
        ("DELETE", "/v1/collections/animals/documents/dog", 404),
    ],
)
async def test_what_does_not_exist_is_refused(serve: Serve, method: str, path: str, status: int) -> None:
    client = await serve(FakeEngine())
    await filled(client)
    await error_of(await client.request(method, path), status)


async def test_nothing_is_added_if_the_engine_fails(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await filled(client)
    engine.refuse = OverloadedError("full", 1.0)
    response = await client.post("/v1/collections/animals/documents", json={"documents": ["new"]})
    await error_of(response, 429)
    assert (await get(client, "/v1/collections/animals", CollectionEntry))["documents"] == 3


@pytest.mark.over_one_engine("holds the engine itself")
async def test_a_collection_that_is_deleted_while_documents_are_added(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await filled(client)
    engine.hold = 0
    adding = asyncio.create_task(client.post("/v1/collections/animals/documents", json={"documents": ["new"]}))
    await engine.held.wait()
    await body_of(await client.delete("/v1/collections/animals"), CollectionDeleted)
    engine.release.set()
    error = await error_of(await adding, 404)
    assert error["message"] == "collection 'animals' was deleted meanwhile"


@pytest.mark.over_one_engine("holds the engine itself")
async def test_a_collection_that_is_deleted_while_it_is_asked(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await filled(client)
    engine.hold = 0
    asking = asyncio.create_task(client.post("/v1/collections/animals/query", json={"query": "legs"}))
    await engine.held.wait()
    await body_of(await client.delete("/v1/collections/animals"), CollectionDeleted)
    engine.release.set()
    assert (await error_of(await asking, 404))["message"] == "collection 'animals' was deleted meanwhile"


async def test_a_collection_of_another_model_is_refused(serve: Serve, tmp_path: Path) -> None:
    settings = ServerSettings(collection_folder=tmp_path)
    first = await serve(FakeEngine(), settings)
    await filled(first)
    with pytest.raises(StateError, match="another process uses it"):
        make_app(FakeEngine(), settings)
    await first.close()
    other = FakeEngine(named=make_states(shape=tiny_shape(vocab=VOCAB_SIZE), model="other"), model="other")
    client = await serve(other, settings)
    assert (await get(client, "/v1/collections/animals", CollectionEntry))["documents"] == 3
    error = await error_of(await client.post("/v1/collections/animals/query", json={"query": "legs"}), 400)
    assert error["message"].startswith(
        "collection: 'animals' is not allowed; expected a collection of the model 'other'; the vectors of this one "
        "were made by 'fake'"
    )


async def test_each_key_has_its_own(serve: Serve) -> None:
    scopes = {"ann": Scope.MANAGE, "bob": Scope.MANAGE, "eve": Scope.USE}
    keys = tuple(ApiKey.of(f"{name}-key", name, scope) for name, scope in scopes.items())
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings(keys)))
    ann, bob, eve = ({"Authorization": f"Bearer {name}-key"} for name in scopes)
    assert (await client.post("/v1/collections", json={"name": "animals"}, headers=ann)).status == 200
    for headers in (bob, eve):
        for path in ("", "/documents", "/documents/cat"):
            await error_of(await client.get(f"/v1/collections/animals{path}", headers=headers), 404)
        assert (await (await client.get("/v1/collections", headers=headers)).json())["data"] == []
    await error_of(await client.post("/v1/collections/animals/query", json={"query": "a"}, headers=eve), 404)
    await error_of(await client.post("/v1/collections", json={"name": "mine"}, headers=eve), 403)
    await error_of(await client.delete("/v1/collections/animals", headers=bob), 404)
    assert (await client.get("/v1/collections/animals", headers=ann)).status == 200


async def test_an_operator_lists_reads_and_deletes_what_any_key_made(serve: Serve, tmp_path: Path) -> None:
    scopes = {"ann": Scope.MANAGE, "bob": Scope.MANAGE, "root": Scope.ADMIN}
    keys = {name: ApiKey.of(f"{name}-key", name, scope) for name, scope in scopes.items()}
    ann, bob, root = ({"Authorization": f"Bearer {name}-key"} for name in scopes)
    path, text = "/v1/collections", {"documents": [{"id": "cat", "text": "A cat sleeps."}]}
    client = await serve(
        FakeEngine(), ServerSettings(auth=AuthSettings(tuple(keys.values())), collection_folder=tmp_path)
    )
    for headers in (ann, bob):
        assert (await client.post(path, json={"name": "animals"}, headers=headers)).status == 200
        assert (await client.post(f"{path}/animals/documents", json=text, headers=headers)).status == 200
    await client.close()
    left = (keys["bob"], keys["root"])
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings(left), collection_folder=tmp_path))

    async def listed(owner: str, headers: dict[str, str] = root) -> list[tuple[str, str]]:
        found = await (await client.get(f"{path}?owner={owner}", headers=headers)).json()
        check_shape(PageOf[CollectionEntry], found)
        return [(each["owner"], each["name"]) for each in found["data"]]

    assert await listed("*") == [("ann", "animals"), ("bob", "animals")]
    assert (await listed("ann"), await listed("root"), await listed("bob", bob)) == (
        [("ann", "animals")],
        [],
        [("bob", "animals")],
    )
    first = (await (await client.get(f"{path}?owner=*&limit=1", headers=root)).json())["last_id"]
    rest = await (await client.get(f"{path}?owner=*&limit=1&after={first}", headers=root)).json()
    assert ([each["owner"] for each in rest["data"]], rest["has_more"]) == (["bob"], False)
    one = f"{path}/animals?owner=ann"
    for headers, where, status in (
        (bob, one, 403),
        (root, f"{path}/animals?owner=*", 400),
        (root, f"{path}/animals", 404),
    ):
        await error_of(await client.delete(where, headers=headers), status)
    found = await client.get(f"{path}/animals/documents/cat?owner=ann", headers=root)
    assert (await found.json())["text"] == "A cat sleeps."
    assert (await client.delete(one, headers=root)).status == 200
    assert await listed("*") == [("bob", "animals")]


async def test_documents_that_are_read_are_counted_in_memory(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_held_bytes=400_000)))
    await filled(client)
    path, large = "/v1/collections/animals", [{"id": each, "text": f"{each} " * 9000} for each in "abcdef"]
    for document in large:
        await post(client, f"{path}/documents", DocumentsAdded, {"documents": [document]})
    query: Body = {"query": "a", "rerank": False, "top_n": 20}
    for response in (await client.get(f"{path}/documents"), await client.post(f"{path}/query", json=query)):
        assert "the documents would take about" in (await error_of(response, 413))["message"]
    page = await get(client, f"{path}/documents?limit=4", PartOf[DocumentEntry])
    assert (len(page["data"]), page["has_more"]) == (4, True)
    assert len((await post(client, f"{path}/query", QueryAnswer, {**query, "top_n": 2}))["results"]) == 2


async def test_all_keys_together_have_a_bound(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_all_collection_bytes=5000)))
    await post(client, "/v1/collections", CollectionEntry, {"name": "animals"})
    response = await client.post("/v1/collections/animals/documents", json={"documents": ["x" * 5000]})
    assert "the most (max_all_collection_bytes)" in (await error_of(response, 507))["message"]
    await post(client, "/v1/collections/animals/documents", DocumentsAdded, {"documents": ["x" * 3000]})
