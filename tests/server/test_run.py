"""A server as a process of its own: how it begins, and how it ends at a signal."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession

from server.app import run
from server.settings import ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import parse_event

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from server.app import ServerSettings, run
from tests.support.fake_engine import FakeEngine

async def load():
    return FakeEngine(hold={hold})

settings = ServerSettings(port=0, drain_seconds={drain_seconds})
run(load, settings, lambda info, url: print(url, flush=True))
print("ended", flush=True)
"""


@contextmanager
def server_process(hold: int | None = None, drain_seconds: float = 10) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    program = PROGRAM.format(hold=hold, drain_seconds=drain_seconds)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def read_ending(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    return output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_an_idle_server(number: int) -> None:
    with server_process() as (process, url):
        async with ClientSession() as session, session.get(f"{url}/health") as response:
            assert response.status == 200
            process.send_signal(number)
            assert read_ending(process) == "ended\n"


async def test_running_request_beyond_the_drain_gets_an_error_event() -> None:
    with server_process(hold=2, drain_seconds=0.1) as (process, url):
        body = {"prompt": "a", "stream": True}
        async with ClientSession() as session, session.post(f"{url}/v1/completions", json=body) as response:
            await response.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            *_, last, nothing = (await response.text()).split("\n\n")
        assert nothing == ""
        assert parse_event(last)["error"]["code"] == "closing"
        assert read_ending(process) == "ended\n"


async def load_nothing() -> FakeEngine:
    raise AssertionError("the address is checked first")


def test_port_in_use_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"can't listen on 127.0.0.1 port {port}: "):
            run(load_nothing, ServerSettings(port=port), lambda info, url: None)


def test_address_of_another_machine_is_told() -> None:
    with pytest.raises(OSError, match="can't listen on 192"):
        run(load_nothing, ServerSettings(host="192.0.2.1", port=0), lambda info, url: None)
