"""Responses in the background, with the official client: fetched, cancelled, streamed from any place, and restarted."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import ClientSession
from openai.types.responses import Response as ClientResponse
from openai.types.responses import ResponseStreamEvent

from rnn_engine.database import Transaction
from rnn_engine.errors import OverloadedError
from rnn_engine.requests import Client, Event, GenerateRequest, TextDelta
from rnn_engine_server.apis.openai.background import BACKGROUND, BackgroundRun, BackgroundRunner
from rnn_engine_server.apis.openai.response_schemas import Response, ResponseEvent
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.store.responses import RESPONSES, StoredResponse
from tests.support.fake_engine import FakeEngine
from tests.support.http import check_shape
from tests.support.job_server import KEYS, JobServer

HI: Any = {"model": "fake", "input": "Hi", "background": True}
UNFINISHED = ("queued", "in_progress")


@pytest.fixture
def server(tmp_path: Path) -> JobServer:
    return JobServer(tmp_path)


@pytest.fixture
def engine(server: JobServer) -> FakeEngine:
    return server.engine


@pytest.fixture
async def client(server: JobServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.run() as client:
        yield client


async def until_ended(client: openai.AsyncOpenAI, response: ClientResponse) -> ClientResponse:
    while response.status in UNFINISHED:
        response = await client.responses.retrieve(response.id)
    return response


async def events_after(client: openai.AsyncOpenAI, response_id: str, number: int = -1) -> list[ResponseStreamEvent]:
    fields: Any = {} if number < 0 else {"starting_after": number}
    return [event async for event in await client.responses.retrieve(response_id, stream=True, **fields)]


async def test_a_response_is_queued_and_fetched_later(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold = 0
    queued = await client.responses.create(**HI, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    assert (queued.status, queued.background, queued.output, queued.usage) == ("queued", True, [], None)
    await engine.held.wait()
    assert (await client.responses.retrieve(queued.id)).status in UNFINISHED
    [item] = [item async for item in client.responses.input_items.list(queued.id)]
    assert item.type == "message"
    engine.release.set()
    ended = await until_ended(client, queued)
    assert (ended.status, ended.output_text, ended.metadata) == ("completed", "Hi 39", {"a": "b"})
    assert (ended.id, ended.created_at, ended.background) == (queued.id, queued.created_at, True)
    assert ended.usage is not None
    assert ended.usage.total_tokens == 45
    [request] = engine.requests
    assert (request.client, request.sampling.temperature) == (Client("ann", 2.0), 0.5)


async def test_a_response_that_runs_is_in_progress(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold = 2
    queued = await client.responses.create(**HI)
    await engine.held.wait()
    assert (await client.responses.retrieve(queued.id)).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match=r"previous_response_id: .* a response that has ended"):
        await client.responses.create(model="fake", input="Bye", previous_response_id=queued.id)
    engine.release.set()
    ended = await until_ended(client, queued)
    following = await client.responses.create(model="fake", input="Bye", previous_response_id=ended.id)
    assert following.output_text == "Hi 49"


async def test_a_stream_goes_on_where_it_was_left(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold = 4
    seen: list[ResponseStreamEvent] = []
    stream = await client.responses.create(**HI, stream=True)
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    [created, queued, begun] = seen[:3]
    assert [event.type for event in (created, queued, begun)] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert created.type == "response.created"
    await engine.held.wait()
    reading = asyncio.create_task(events_after(client, created.response.id, seen[-1].sequence_number))
    engine.release.set()
    seen += await reading
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == "Hi 20"
    last = seen[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hi 20"
    for number in (-1, 0, 1, 5, len(seen) - 1, len(seen) + 9):
        again = await events_after(client, created.response.id, number)
        assert [event.to_dict() for event in again] == [event.to_dict() for event in seen[number + 1 :]]
    assert (await client.responses.retrieve(created.response.id)).output_text == "Hi 20"


async def test_a_client_that_leaves_does_not_end_the_response(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold = 0
    stream = await client.responses.create(**HI, stream=True)
    created = await anext(aiter(stream))
    assert created.type == "response.created"
    await stream.close()
    await engine.held.wait()
    engine.release.set()
    assert (await until_ended(client, created.response)).output_text == "Hi 20"


async def test_only_what_has_events_is_streamed(client: openai.AsyncOpenAI) -> None:
    plain = await client.responses.create(model="fake", input="Hi")
    background = await client.responses.create(**HI)
    for response in (plain, background):
        with pytest.raises(openai.BadRequestError, match="asked for with `background` and `stream`"):
            await events_after(client, response.id)


async def test_a_response_is_cancelled(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold = 3
    made = await client.conversations.create()
    stream = await client.responses.create(**HI, stream=True, conversation=made.id)
    created = await anext(aiter(stream))
    assert created.type == "response.created"
    await engine.held.wait()
    cancelled = await client.responses.cancel(created.response.id)
    assert (cancelled.status, cancelled.output) == ("cancelled", [])
    assert (engine.active, [event.type async for event in stream][-1]) == (0, "response.output_text.delta")
    assert (await client.responses.cancel(cancelled.id)).status == "cancelled"
    assert (await client.conversations.items.list(made.id)).data == []
    plain = await client.responses.create(model="fake", input="Hi", stream=False, extra_body={"max_tokens": 1})
    with pytest.raises(openai.BadRequestError, match="asked for with `background`"):
        await client.responses.cancel(plain.id)


async def test_a_deleted_response_stops_and_leaves_nothing(
    client: openai.AsyncOpenAI, server: JobServer, engine: FakeEngine
) -> None:
    engine.hold = 0
    queued = await client.responses.create(**HI)
    created = await anext(aiter(await client.responses.create(**HI, stream=True)))
    assert created.type == "response.created"
    await engine.held.wait()
    for made in (queued, created.response):
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
    assert engine.active == 0
    assert list(server.folder.glob("blobs/*.events")) == []


async def test_a_full_disk_strands_no_response_that_is_cancelled_or_deleted(
    client: openai.AsyncOpenAI, server: JobServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.hold = 0
    first, second = [await client.responses.create(**HI) for _ in range(2)]
    await engine.held.wait()
    reserve, write = server.folder / "jobs.sqlite-reserve", RESPONSES.put

    def put(transaction: Transaction, response: StoredResponse) -> None:
        if reserve.exists():  # it is given up for a change that frees room
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        write(transaction, response)

    monkeypatch.setattr(RESPONSES, "put", put)
    assert (await client.responses.cancel(first.id)).status == "cancelled"
    await client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(second.id)
    assert engine.active == 0


async def test_a_response_that_is_cancelled_while_it_is_queued_does_not_run(
    client: openai.AsyncOpenAI, server: JobServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.hold = 0
    start, cancelling = BackgroundRunner._start, list[asyncio.Task[None]]()

    async def cancel_and_start(runner: BackgroundRunner, response: StoredResponse) -> None:
        cancelling.append(asyncio.create_task(runner.cancel(response)))
        for _ in range(5):  # passes of the loop, in which it looks for the run
            await asyncio.sleep(0)
        await start(runner, response)

    monkeypatch.setattr(BackgroundRunner, "_start", cancel_and_start)
    made = await client.responses.create(**HI)
    await cancelling[0]
    assert (await client.responses.retrieve(made.id)).status == "cancelled"
    assert (server.app[BACKGROUND].find(made.id), engine.active) == (None, 0)


async def test_a_conversation_gets_the_answer_when_it_is_there(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    made = await client.conversations.create(items=[{"role": "user", "content": "First"}])
    engine.hold = 0
    queued = await client.responses.create(**HI, conversation=made.id)
    await engine.held.wait()
    await client.conversations.items.create(made.id, items=[{"role": "user", "content": "Meanwhile"}])
    engine.release.set()
    await until_ended(client, queued)
    items = [item.to_dict() async for item in client.conversations.items.list(made.id, order="asc")]
    texts = [item["content"][0]["text"] for item in items]  # type: ignore[index]
    assert texts == ["First", "Meanwhile", "Hi", "Hi 33"]


@pytest.mark.parametrize("fails_at", [0, 3])
async def test_a_response_that_fails(client: openai.AsyncOpenAI, engine: FakeEngine, fails_at: int) -> None:
    engine.fail_at = fails_at
    events = [event async for event in await client.responses.create(**HI, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.failed"
    failed = await until_ended(client, last.response)
    assert failed.status == "failed"
    assert failed.error is not None
    assert last.response.error == failed.error


async def test_what_is_wrong_is_refused_at_once(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    for fields, words in (
        ({"store": False}, "store: False is not allowed; expected true"),
        ({"extra_body": {"state": "nobody's"}}, "nobody's"),
        ({"previous_response_id": "resp_none"}, "there is no response"),
    ):
        with pytest.raises(openai.APIStatusError, match=words):
            await client.responses.create(**{**HI, **fields})
    assert engine.requests == []


async def test_a_full_queue_delays_a_response(
    client: openai.AsyncOpenAI, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.refuse = OverloadedError("the queue is full", 0.01)

    async def free(_seconds: float) -> None:
        engine.refuse = None

    monkeypatch.setattr("rnn_engine_server.apis.openai.background.asyncio.sleep", free)
    events = [event async for event in await client.responses.create(**HI, stream=True)]
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_response_that_is_always_refused_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = JobServer(tmp_path, limits=Limits(max_request_seconds=7))
    server.engine.refuse = OverloadedError("the queue is full", 3.0)
    waited: list[float] = []
    now = time.monotonic()

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("rnn_engine_server.apis.openai.background.asyncio.sleep", wait)
    monkeypatch.setattr("rnn_engine_server.apis.openai.background.time.monotonic", lambda: now + sum(waited))
    async with server.run() as client:
        ended = await until_ended(client, await client.responses.create(**HI))
    assert ended.status == "failed"
    assert ended.error is not None
    assert "the queue is full" in ended.error.message
    assert sum(waited) == pytest.approx(7.0)


async def test_a_key_may_have_so_many(tmp_path: Path) -> None:
    server = JobServer(tmp_path, limits=Limits(max_key_background=2))
    server.engine.hold = 0
    async with server.run() as client:
        for _ in range(2):
            await client.responses.create(**HI)
        with pytest.raises(openai.RateLimitError, match="max_key_background"):
            await client.responses.create(**HI)
        bob = client.with_options(api_key="bob's key")
        other = await bob.responses.create(**HI)
        for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await call(other.id)


async def test_a_restart_runs_what_had_not_ended_with_the_same_seed(tmp_path: Path) -> None:
    """A server is stopped in the middle of an answer, and its folder copied before, as a kill leaves it."""
    (tmp_path / "a").mkdir()
    first = JobServer(tmp_path / "a")
    async with first.run() as client:
        made = await client.responses.create(model="fake", input="Bye")
        first.engine.hold = 3
        fields: Any = {**HI, "previous_response_id": made.id, "stream": True}
        created = await anext(aiter(await client.responses.create(**fields)))
        assert created.type == "response.created"
        await first.engine.held.wait()
        await client.responses.delete(made.id)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    for folder in ("a", "b"):
        second = JobServer(tmp_path / folder)
        async with second.run() as client:
            ended = await until_ended(client, await client.responses.retrieve(created.response.id))
            assert (ended.status, ended.output_text) == ("completed", "Hi 49")
            events = await events_after(client, ended.id, 1)
            assert "response.failed" not in [event.type for event in events]
            assert [event.sequence_number for event in events] == list(range(2, len(events) + 2))
            assert events[-1].type == "response.completed"
        old, new = first.engine.requests[-1], second.engine.requests[-1]
        assert old.sampling.seed == new.sampling.seed is not None
        assert old.prompt == new.prompt
        third = JobServer(tmp_path / folder)
        async with third.run() as client:
            assert (await client.responses.retrieve(ended.id)).output_text == "Hi 49"
            assert len(await events_after(client, ended.id)) == len(events) + 2
        assert third.engine.requests == []


async def test_a_damaged_response_fails_after_a_restart_and_others_run(tmp_path: Path) -> None:
    first = JobServer(tmp_path)
    first.engine.hold = 0
    async with first.run() as client:
        damaged, whole = [await client.responses.create(**HI) for _ in range(2)]
        await first.engine.held.wait()
    with sqlite3.connect(tmp_path / "jobs.sqlite") as connection:
        connection.execute("UPDATE ends SET body = ? WHERE id = ?", (b"{", damaged.id))
    async with JobServer(tmp_path).run() as client:
        failed = await client.responses.retrieve(damaged.id)
        assert (failed.status, failed.output) == ("failed", [])
        assert failed.error is not None
        assert "what is stored of it is damaged" in failed.error.message
        assert (await until_ended(client, await client.responses.retrieve(whole.id))).status == "completed"


class GroupingEngine(FakeEngine):
    """A fake engine whose events have several tokens each, as with guessed tokens."""

    group = 4

    async def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        held = list[TextDelta]()
        async for event in super().generate(request, wait_for_room=wait_for_room):
            if isinstance(event, TextDelta):
                held.append(event)
            if held and (len(held) == self.group or not isinstance(event, TextDelta)):
                yield TextDelta(
                    "".join(each.text for each in held), tuple(info for each in held for info in each.tokens)
                )
                held.clear()
            if not isinstance(event, TextDelta):
                yield event


@pytest.mark.parametrize("before", [1, 2, 5])
async def test_a_stream_goes_on_after_a_kill_if_its_pieces_differ(tmp_path: Path, before: int) -> None:
    """Whatever a client has seen before a kill, with what it reads after it, is the whole answer once."""
    reply = " <think>Well, let me see.</think>Hello there, ann!"

    def serve(folder: str, group: int) -> JobServer:
        engine = GroupingEngine(reply=lambda _: reply)
        engine.group = group
        return JobServer(tmp_path / folder, engine)

    fields: Any = {**HI, "stream": True, "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    (tmp_path / "a").mkdir()
    first = serve("a", before)
    first.engine.hold = 40
    async with first.run() as client:
        stream = await client.responses.create(**fields)
        created = await anext(aiter(stream))
        assert created.type == "response.created"
        await first.engine.held.wait()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        first.engine.release.set()
        seen = [created, *[event async for event in stream]]
    [log] = (tmp_path / "b" / "blobs").glob("*.events")
    num_seen = log.read_bytes().count(b"\n\n")
    with log.open("ab") as file:
        file.write(b"event: response.output_text.delta\nda")  # a kill in the middle of an event
    async with serve("b", 3).run() as client:
        ended = await until_ended(client, await client.responses.retrieve(created.response.id))
        again = await events_after(client, ended.id)
    before_kill: list[Any] = [event.to_dict() for event in seen]
    told: list[Any] = [event.to_dict() for event in again]
    assert told[:num_seen] == before_kill[:num_seen]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))

    def others(events: list[Any]) -> list[str]:
        return [event["type"] for event in events if "delta" not in event]

    def text(events: list[Any], kind: str) -> str:
        return "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")

    assert others(told) == others(before_kill)
    for kind in ("reasoning_text", "output_text"):
        assert text(told, kind) == text(before_kill, kind) != ""
    logprobs = [part for event in told if event["type"] == "response.output_text.delta" for part in event["logprobs"]]
    assert logprobs == told[-1]["response"]["output"][-1]["content"][0]["logprobs"]


def test_a_log_of_events_is_gone_on_with(tmp_path: Path) -> None:
    """What is damaged is written anew, and the failure of a server that stops is not told."""
    log, queued = tmp_path / "log", {"id": "resp_1", "status": "queued", "output": []}
    run = BackgroundRun(queued, log, lambda: True)
    run.add([{"type": "response.failed"}, {"type": "response.created"}, {"type": "a"}])
    run.end()
    again = BackgroundRun(queued, log, lambda: False)
    assert (again.num_events, again.num_bytes) == (3, log.stat().st_size)
    again.add([{"type": kind} for kind in ("response.created", "a", "a", "b")])
    told = [json.loads(event.partition(b"data: ")[2]) for event in log.read_bytes().split(b"\n\n")[:-1]]
    assert [event["type"] for event in told] == ["response.created", "response.queued", "a", "a", "b"]
    assert [event["sequence_number"] for event in told] == [0, 1, 2, 3, 4]
    again.end()
    log.write_bytes(b"damaged\n\n")
    anew = BackgroundRun(queued, log, lambda: False)
    assert (anew.num_events, log.read_bytes().count(b"\n\n")) == (2, 2)
    anew.end()


async def test_a_response_of_a_removed_key_fails(tmp_path: Path) -> None:
    first = JobServer(tmp_path)
    first.engine.hold = 0
    async with first.run() as client:
        queued = await client.responses.create(**HI)
    second = JobServer(tmp_path, keys=KEYS[1:])
    async with second.run():
        while second.app[BACKGROUND].find(queued.id) is not None:
            await asyncio.sleep(0)
    async with JobServer(tmp_path).run() as client:
        failed = await client.responses.retrieve(queued.id)
        assert failed.error is not None
        assert (failed.status, failed.error.code) == ("failed", "key_removed")


async def test_the_shapes_of_the_answers(client: openai.AsyncOpenAI) -> None:
    url = f"{client.base_url}responses"
    async with ClientSession(headers={"Authorization": "Bearer ann's key"}) as session:
        queued = await (await session.post(url, json=HI)).json()
        check_shape(Response, queued)
        text = await (await session.post(url, json={**HI, "stream": True})).text()
        for frame in text.removesuffix("\n\n").split("\n\n"):
            name, _, data = frame.partition("\ndata: ")
            event = json.loads(data)
            assert name == f"event: {event['type']}"
            check_shape(ResponseEvent, event)
    cancelled = await client.responses.cancel(queued["id"])
    check_shape(Response, await client.get(f"/responses/{cancelled.id}", cast_to=object))
