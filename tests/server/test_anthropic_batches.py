"""Anthropic's message batches, with the official client: results, errors, cancelling, pages, owners, and restarts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import ClientSession
from anthropic.types.messages import MessageBatch as Batch
from anthropic.types.messages import MessageBatchIndividualResponse

from rnn_engine.requests import Client
from rnn_engine_server.apis.anthropic.batches import MessageBatch, MessageBatchList, MessageBatchResult
from rnn_engine_server.apis.anthropic.schemas import AnthropicError
from rnn_engine_server.core.settings import Limits
from tests.support.http import Body, check_head, check_shape
from tests.support.job_server import JobServer

DAY = 24 * 3600


def asked(custom_id: str, text: str = "Hi", **fields: object) -> Any:  # noqa: ANN401
    params = {"model": "fake", "max_tokens": 200, "messages": [{"role": "user", "content": text}], **fields}
    return {"custom_id": custom_id, "params": params}


@pytest.fixture
def server(tmp_path: Path) -> JobServer:
    return JobServer(tmp_path)


@pytest.fixture
async def client(server: JobServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with server.run_anthropic() as client:
        yield client


async def until_ended(client: anthropic.AsyncAnthropic, batch: Batch) -> Batch:
    while batch.processing_status != "ended":
        batch = await client.messages.batches.retrieve(batch.id)
    return batch


async def run(client: anthropic.AsyncAnthropic, requests: Sequence[Any]) -> Batch:
    return await until_ended(client, await client.messages.batches.create(requests=requests))


async def results(client: anthropic.AsyncAnthropic, batch: Batch) -> dict[str, MessageBatchIndividualResponse]:
    found = [each async for each in await client.messages.batches.results(batch.id)]
    assert len({each.custom_id for each in found}) == len(found)
    return {each.custom_id: each for each in found}


def left(folder: Path) -> list[Path]:
    """Return the files of batches in a folder of jobs."""
    return [*folder.glob("file-*"), *folder.glob("batch_*")]


async def test_a_batch_is_run_and_read(client: anthropic.AsyncAnthropic, server: JobServer) -> None:
    begun = await client.messages.batches.create(requests=[asked(f"a-{number}", "x" * number) for number in range(5)])
    assert (begun.type, begun.processing_status) == ("message_batch", "in_progress")
    assert begun.request_counts.to_dict() == {
        "processing": 5, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0,
    }  # fmt: skip
    assert (begun.expires_at - begun.created_at).total_seconds() == DAY
    assert (begun.ended_at, begun.results_url) == (None, None)
    batch = await until_ended(client, begun)
    assert batch.request_counts.to_dict() == {
        "processing": 0, "succeeded": 5, "errored": 0, "canceled": 0, "expired": 0,
    }  # fmt: skip
    assert batch.ended_at is not None
    assert (batch.cancel_initiated_at, batch.archived_at) == (None, None)
    found = await results(client, batch)
    texts = {each: found[each].result.message.content[0].text for each in found}  # type: ignore[union-attr]
    assert texts == {f"a-{number}": f"Hi {18 + number}" for number in range(5)}
    assert {request.client for request in server.engine.requests} == {Client("ann batches", 2.0, is_background=True)}


async def test_a_wrong_request_is_an_error_of_its_own(client: anthropic.AsyncAnthropic) -> None:
    wrong = [asked("bad", temperature="hot"), {"custom_id": "empty", "params": {}}]
    batch = await run(client, [asked("good"), *wrong])
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 2)
    found = await results(client, batch)
    assert found["good"].result.type == "succeeded"
    for custom_id, word in (("bad", "temperature"), ("empty", "max_tokens")):
        result = found[custom_id].result
        assert result.type == "errored"
        assert result.error.error.type == "invalid_request_error"
        assert word in result.error.error.message
        assert result.error.request_id


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "requests: .* at least 1 item"),
        (
            [asked("a"), asked("a")],
            "requests.1.custom_id: 'a' is not allowed; expected an id that no other request has",
        ),
        ([asked("a b")], r"requests.0.custom_id"),
        ([asked("a", stream=True)], r"requests.0.params.stream: True is not allowed; expected false"),
        ([{"custom_id": "a"}], "requests.0.params"),
        ([asked(str(number)) for number in range(4)], "max_batch_lines"),
    ],
)
async def test_requests_that_make_no_batch(tmp_path: Path, requests: list[Any], words: str) -> None:
    async with JobServer(tmp_path, limits=Limits(max_batch_lines=3)).run_anthropic() as client:
        with pytest.raises(anthropic.BadRequestError, match=words) as caught:
            await client.messages.batches.create(requests=requests)
        check_shape(AnthropicError, caught.value.body)
        assert (await client.messages.batches.list()).data == []
    assert left(tmp_path) == []


async def test_a_batch_beyond_the_bound_leaves_no_file(tmp_path: Path) -> None:
    server = JobServer(tmp_path, limits=Limits(max_key_batches=1))
    server.engine.hold = 0
    async with server.run_anthropic() as client:
        await client.messages.batches.create(requests=[asked("a")])
        with pytest.raises(anthropic.BadRequestError, match="max_key_batches"):
            await client.messages.batches.create(requests=[asked("b")])
        assert len(list(tmp_path.glob("blobs/file-*"))) == 1


async def test_a_batch_is_cancelled_and_says_of_each_request_what_became_of_it(
    client: anthropic.AsyncAnthropic, server: JobServer
) -> None:
    server.engine.hold = 0
    running, waiting = [
        await client.messages.batches.create(requests=[asked(str(number)) for number in range(9)]) for _ in range(2)
    ]
    await server.engine.held.wait()
    with pytest.raises(anthropic.AnthropicError, match="Has it finished"):
        await client.messages.batches.results(running.id)
    with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
        await client.messages.batches.delete(running.id)
    assert (await client.messages.batches.cancel(waiting.id)).processing_status == "ended"
    assert (await client.messages.batches.cancel(running.id)).processing_status == "canceling"
    for batch in (running, waiting):
        ended = await until_ended(client, batch)
        assert (ended.request_counts.canceled, ended.request_counts.succeeded) == (9, 0)
        assert ended.cancel_initiated_at is not None
        found = await results(client, ended)
        assert found.keys() == set(map(str, range(9)))
        assert {each.result.type for each in found.values()} == {"canceled"}


async def test_a_deleted_batch_leaves_nothing(client: anthropic.AsyncAnthropic, server: JobServer) -> None:
    batch = await run(client, [asked("a"), asked("b", temperature="hot")])
    deleted = await client.messages.batches.delete(batch.id)
    assert deleted.to_dict() == {"id": batch.id, "type": "message_batch_deleted"}
    for call in (client.messages.batches.retrieve, client.messages.batches.delete, client.messages.batches.results):
        with pytest.raises(anthropic.NotFoundError, match="no message batch"):
            await call(batch.id)
    assert left(server.folder) == []


async def test_pages(client: anthropic.AsyncAnthropic) -> None:
    made = [(await run(client, [asked("a")])).id for _ in range(5)]
    newest_first = made[::-1]
    batches = client.messages.batches
    assert [each.id async for each in batches.list(limit=2)] == newest_first
    page = await batches.list(limit=2, before_id=made[0])
    assert ([each.id for each in page.data], page.has_more) == (newest_first[2:4], True)
    page = await batches.list(limit=2, before_id=newest_first[2])
    assert ([each.id for each in page.data], page.has_more) == (newest_first[:2], False)
    assert (page.first_id, page.last_id) == (newest_first[0], newest_first[1])
    for fields, words in (({"after_id": "x"}, "after_id"), ({"limit": 1001}, "from 0 to 1000")):
        with pytest.raises(anthropic.BadRequestError, match=words):
            await batches.list(**fields)


async def test_a_batch_belongs_to_its_key(client: anthropic.AsyncAnthropic) -> None:
    batch = await run(client, [asked("a")])
    bob = client.with_options(api_key="bob's key").messages.batches
    assert (await bob.list()).data == []
    for call in (bob.retrieve, bob.cancel, bob.delete, bob.results):
        with pytest.raises(anthropic.NotFoundError, match="no message batch"):
            await call(batch.id)


async def test_openais_routes_show_a_message_batch_too(client: anthropic.AsyncAnthropic) -> None:
    batch = await run(client, [asked("a")])
    async with openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="ann's key", max_retries=0) as other:
        [shown] = (await other.batches.list()).data
        assert (f"msg{shown.id}", shown.endpoint, shown.status) == (batch.id, "/v1/messages", "completed")
        file = await other.files.create(file=b"{}", purpose="batch")
        wanted: Any = {"endpoint": "/v1/completions", "completion_window": "24h"}
        own = await other.batches.create(input_file_id=file.id, **wanted)
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.batches.retrieve(f"msg{own.id}")
    assert [each.id for each in (await client.messages.batches.list()).data] == [batch.id]


async def test_results_are_deleted_after_29_days(client: anthropic.AsyncAnthropic, server: JobServer) -> None:
    batch = await run(client, [asked("a")])
    server.now += 29 * DAY
    archived = await client.messages.batches.retrieve(batch.id)
    assert (archived.results_url, archived.archived_at is not None) == (None, True)
    with pytest.raises(anthropic.NotFoundError, match="its results are gone"):
        await client.get(f"/v1/messages/batches/{batch.id}/results", cast_to=object)


@pytest.mark.parametrize("days", [0, 1])
async def test_a_restart_goes_on_unless_the_day_is_over(tmp_path: Path, days: int) -> None:
    server = JobServer(tmp_path)
    server.engine.hold = 0
    async with server.run_anthropic() as client:
        begun = await client.messages.batches.create(requests=[asked("a"), asked("b")])
        await server.engine.held.wait()
    restarted = JobServer(tmp_path)
    restarted.now += days * DAY
    async with restarted.run_anthropic() as client:
        batch = await until_ended(client, begun)
        assert (batch.request_counts.succeeded, batch.request_counts.expired) == ((0, 2) if days else (2, 0))
        kinds = {each.result.type for each in (await results(client, batch)).values()}
        assert kinds == {"expired" if days else "succeeded"}


async def test_the_shapes_of_the_answers(client: anthropic.AsyncAnthropic) -> None:
    batch = await run(client, [asked("a"), asked("b", temperature="hot")])
    raw: Any = await client.get(f"/v1/messages/batches/{batch.id}", cast_to=object)
    check_shape(MessageBatch, raw)
    check_shape(MessageBatchList, await client.get("/v1/messages/batches", cast_to=object))
    async with ClientSession(str(client.base_url), headers={"X-Api-Key": "ann's key"}) as session:
        response = await session.get(raw["results_url"])
        assert response.content_type == "application/x-jsonl"
        lines: list[Body] = [json.loads(line) for line in (await response.text()).splitlines()]
    assert len(lines) == 2
    for line in lines:
        check_shape(MessageBatchResult, line)
    await check_head(f"{client.base_url}{raw['results_url']}", {"X-Api-Key": "ann's key"})
