"""Connections: their time limits, their number, and the answer to bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rnn_engine.engine import Engine
from rnn_engine.loading.parts import assemble
from rnn_engine_server.connections import fit_descriptors, raise_descriptor_limit
from rnn_engine_server.core.settings import ConnectionSettings, ServerSettings
from rnn_engine_server.store.folder import Store
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import FakeEngine
from tests.support.fake_runner import FakeRunner, scripted_logits
from tests.support.http import Through
from tests.support.raw_server import raw_server

SHORT = 0.05
TEXT = {"prompt": "a"}
STREAM = {"prompt": "a", "stream": True}


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"GARBAGE\r\n\r\n", "not an HTTP request: Invalid method encountered"),
        (b"GET / HTTP/1.1\r\nBad Header\r\n\r\n", "not an HTTP request: Invalid header token"),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer s3cret\0\r\n\r\n", "not an HTTP request: Invalid header value char"),
        (b"GET / HTTP/1.1\r\nAuthorization : s3cret\r\n\r\n", "not an HTTP request: Invalid header token"),
        (b"GET / HTTP/1.1\r\nX-Api-Key: s3cret\nA: b\r\n\r\n", "not an HTTP request: Missing expected CR"),
        (b"X-Api-Key: s3cret\r\n\r\n", "not an HTTP request: Invalid method encountered"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n", "not an HTTP request: Got more than 8190 bytes"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", "not an HTTP request: Invalid char in url path"),
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            "not an HTTP request: Received HTTPS traffic on an HTTP port",
        ),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "not an HTTP request: Invalid char",
        ),
    ],
)
async def test_what_is_no_request_is_answered_without_a_traceback(
    through: Through, sent: bytes, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with raw_server(await through(FakeEngine())) as server:
        client = await server.connect()
        client.send(sent)
        status, error = await client.error()
        assert (status, error["type"]) == (400, "invalid_request_error")
        assert error["message"].startswith(message)
        assert "\n" not in error["message"]
        assert "s3cret" not in error["message"] + caplog.text
        assert await client.ended() == b""
    assert "not an HTTP request" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


async def test_a_body_that_nobody_reads_and_that_can_not_be_decoded(
    through: Through, caplog: pytest.LogCaptureFixture
) -> None:
    async with raw_server(await through(FakeEngine())) as server:
        client = await server.connect()
        for _ in range(2):
            client.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: deflate\r\n")
            client.send(b"Content-Length: 200\r\n\r\n" + b"\x1f\x8b" * 100)
            assert (await client.answer())[0] == 200
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"identity, chunked", b"chunked\r\nTransfer-Encoding: chunked"])
async def test_a_transfer_coding_that_is_not_known(through: Through, coding: bytes) -> None:
    async with raw_server(await through(FakeEngine())) as server:
        client = await server.connect()
        client.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " + coding + b"\r\n\r\n")
        status, error = await client.error()
        assert (status, error["message"].partition(" ")[0]) in ((501, "Transfer-Encoding:"), (400, "not"))
        client.writer.write_eof()  # else the server reads on for some seconds, since it can't know where the body ends
        assert await client.ended() == b""


@pytest.mark.parametrize(
    "headers",
    [
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 6",
        b"Content-Length: +5",
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: chunked, gzip",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding : chunked",
    ],
)
async def test_a_body_whose_length_is_in_doubt(through: Through, headers: bytes) -> None:
    async with raw_server(await through(FakeEngine())) as server:
        client = await server.connect()
        client.send(b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n\r\n0\r\n\r\n")
        assert (await client.error())[0] == 400
        assert await client.ended() == b""


async def test_an_expectation_that_is_not_known(through: Through) -> None:
    async with raw_server(await through(FakeEngine())) as server:
        client = await server.connect()
        client.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nExpect: magic\r\n\r\n")
        status, error = await client.error()
        assert (status, error["code"], error["message"]) == (417, "expectation_failed", "Unknown Expect: magic")


class TestTime:
    async def test_a_silent_connection_is_closed(self, through: Through) -> None:
        async with raw_server(await through(FakeEngine()), ConnectionSettings(idle_seconds=SHORT)) as server:
            assert await (await server.connect()).ended() == b""
            assert server.counters.closed["idle"] == 1
            assert server.counters.open == 0

    async def test_a_connection_that_waits_for_its_next_request_is_closed(self, through: Through) -> None:
        async with raw_server(await through(FakeEngine()), ConnectionSettings(idle_seconds=SHORT)) as server:
            client = await server.connect()
            client.ask("/v1/models")
            assert (await client.answer())[0] == 200
            assert await client.ended() == b""

    async def test_a_slow_head(self, through: Through) -> None:
        async with raw_server(await through(FakeEngine()), ConnectionSettings(header_seconds=SHORT)) as server:
            client = await server.connect()
            client.ask("/v1/models")
            assert (await client.answer())[0] == 200
            client.send(b"GET /v1/models HTTP/1.1\r\nX-")
            status, error = await client.error()
            assert (status, error["message"]) == (408, "the head of the request took longer than 0.05 s")
            assert await client.ended() == b""
            assert server.counters.closed["slow_head"] == 1

    async def test_a_slow_body(self, through: Through, caplog: pytest.LogCaptureFixture) -> None:
        async with raw_server(await through(FakeEngine()), ConnectionSettings(body_seconds=SHORT)) as server:
            client = await server.connect()
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            status, error = await client.error()
            assert status == 408
            assert error["message"].startswith(
                "the body came too slowly; expected it in 0.05 s, plus a second for each"
            )
            assert await client.ended() == b""
            assert server.counters.closed["slow_body"] == 1
        assert caplog.text == ""

    async def test_a_running_request_is_neither_idle_nor_slow(self, through: Through) -> None:
        """The end of a second connection shows that the time limits of the first one have passed."""
        engine = FakeEngine(hold=1)
        times = ConnectionSettings(header_seconds=SHORT, idle_seconds=SHORT)
        async with raw_server(await through(engine), times) as server:
            client = await server.connect()
            client.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{")
            assert await (await server.connect()).ended() == b""
            client.send(b'"prompt": "a"}')
            await engine.held.wait()
            assert await (await server.connect()).ended() == b""
            engine.release.set()
            assert (await client.answer())[0] == 200

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_reader_that_stalls_is_dropped(
        self, through: Through, stream: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        engine = FakeEngine(reply=lambda _: "x" * 3000)
        async with raw_server(await through(engine), ConnectionSettings(stall_seconds=SHORT)) as server:
            client = await server.connect(limit=1000)
            client.ask("/v1/completions", {"prompt": "a", "stream": stream, "logprobs": 20, "max_tokens": 3000})
            while "no longer reads its answer" not in caplog.text:
                await asyncio.sleep(0)
            assert len(await client.ended()) > 1000
            while engine.active:
                await asyncio.sleep(0)
            assert (engine.produced < 3000) == stream
            assert server.counters.closed["stalled"] == 1

    async def test_readers_that_stall_share_one_answer(self, through: Through) -> None:
        path = "/openapi.json"
        async with raw_server(await through(FakeEngine())) as server:
            first = await server.connect()
            first.ask(path)
            _, _, body = await first.answer()
            tracemalloc.start()
            try:
                for _ in range(20):
                    client = await server.connect(limit=2048)
                    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    client.ask(path)
                    await client.reader.readuntil(b"\r\n\r\n")
                assert tracemalloc.get_traced_memory()[0] < 20 * len(body) / 5
            finally:
                tracemalloc.stop()
            first.ask(path)
            assert (await first.answer())[2] == body

    async def test_a_reader_of_a_file_that_stalls_is_dropped(self, through: Through, tmp_path: Path) -> None:
        store = Store(tmp_path)
        async with store.files.create("") as new:
            await new.write(bytes(1 << 24))
            new.describe("zeros.jsonl", "batch", None)
        store.close()
        assert new.stored is not None
        settings = ServerSettings(connections=ConnectionSettings(stall_seconds=SHORT), job_folder=tmp_path)
        async with raw_server(await through(FakeEngine()), settings=settings) as server:
            client = await server.connect(limit=1000)
            client.ask(f"/v1/files/{new.stored.id}/content")
            while not server.counters.closed["stalled"]:
                await asyncio.sleep(0)
            assert 1000 < len(await client.ended()) < 1 << 24

    async def test_readers_that_stall_in_all_slots_make_room_for_others(self, through: Through) -> None:
        tokenizer = ByteTokenizer()
        runner = FakeRunner(scripted_logits(tokenizer.size, []), num_slots=2)
        engine = Engine(assemble(runner, tokenizer, model="fake", device="none", weights="f32"))
        async with raw_server(await through(engine), ConnectionSettings(stall_seconds=SHORT)) as server:
            endless = {**STREAM, "logprobs": 5, "max_tokens": 2**31 - 1, "logit_bias": {"0": -1000}}
            for _ in range(2):
                (await server.connect(limit=1000)).ask("/v1/completions", endless)
            await until(lambda: engine.stats().active == 2)
            client = await server.connect()
            client.ask("/v1/completions", {**TEXT, "max_tokens": 1})
            async with asyncio.timeout(60):
                assert (await client.answer())[0] == 200


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


class TestNumber:
    async def test_the_longest_waiting_makes_room(self, through: Through) -> None:
        async with raw_server(await through(FakeEngine()), ConnectionSettings(max_connections=2)) as server:
            first, second, third = [await server.connect() for _ in range(3)]
            assert await first.ended() == b""
            assert (server.counters.open, server.counters.closed["made_room"]) == (2, 1)
            for client in (second, third):
                client.ask("/v1/models")
                assert (await client.answer())[0] == 200

    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            (ConnectionSettings(max_connections=2), "2 connections are open, the most for this server"),
            (ConnectionSettings(max_per_client=2), "127.0.0.1 has 2 connections, the most for one client"),
        ],
    )
    async def test_refused_where_none_waits(self, through: Through, limits: ConnectionSettings, message: str) -> None:
        engine = FakeEngine(hold=1)
        async with raw_server(await through(engine), limits) as server:
            busy = [await server.connect() for _ in range(2)]
            for client in busy:
                client.ask("/v1/completions", STREAM)
            for client in busy:
                await client.reader.readuntil(b"\r\n\r\n")
            refused = await server.connect()
            status, error = await refused.error()
            assert (status, error["code"], error["message"]) == (429, "overloaded", message)
            assert await refused.ended() == b""
            assert (server.counters.open, server.counters.closed["refused"]) == (2, 1)
            engine.release.set()
            assert b"[DONE]" in await busy[0].reader.readuntil(b"\r\n0\r\n\r\n")
            again = await server.connect()
            again.ask("/v1/models")
            assert (await again.answer())[0] == 200

    async def test_without_room_in_the_system_it_goes_on_quietly(
        self, through: Through, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Accepting fails three times, and each time an idle connection is closed."""
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, iter(range(3))

        async def fail_at_first(listener: socket.socket) -> Any:  # noqa: ANN401
            if next(failures, None) is not None:
                raise OSError(errno.EMFILE, "Too many open files")
            return await accept(listener)

        monkeypatch.setattr("rnn_engine_server.connections._RETRY_SECONDS", 0)
        monkeypatch.setattr(loop, "sock_accept", fail_at_first)
        async with raw_server(await through(FakeEngine())) as server:
            client = await server.connect()
            client.ask("/v1/models")
            assert (await client.answer())[0] == 200
        assert caplog.text.count("can't accept connections: Too many open files") == 1


def test_connections_are_fewer_than_half_of_the_files(caplog: pytest.LogCaptureFixture) -> None:
    limit = raise_descriptor_limit()
    assert limit is not None
    assert fit_descriptors(ConnectionSettings(max_connections=limit // 2)).max_connections == limit // 2
    assert caplog.text == ""
    assert fit_descriptors(ConnectionSettings(max_connections=limit)).max_connections == limit // 2
    assert f"{limit // 2} connections at most, not {limit}: the process may open only {limit} files" in caplog.text


def test_where_files_are_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows there is no module `resource`, as here."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert raise_descriptor_limit() is None
    assert fit_descriptors(ConnectionSettings()) == ConnectionSettings()
