"""A server as a process of its own: its start, and its end at a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, UnixConnector

from rnn_engine.errors import EngineClosedError
from rnn_engine.telemetry import Health
from rnn_engine_server.core import process as own_process
from rnn_engine_server.core.app import run
from rnn_engine_server.core.process import (
    notify,
    open_listeners,
    responsive_interpreter,
    stop_signals,
    take_sockets,
    url_of,
)
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.forked import FakeServer, server_process
from tests.support.http import parse_event
from tests.support.processes import ROOT

PROGRAM = """
from tests.support.forked import FakeServer

FakeServer().run(lambda line: print(line, flush=True))
"""
STREAM = {"prompt": "a", "stream": True}


async def test_full_collections_wait_for_idle_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        whole: Part

    monkeypatch.setattr("rnn_engine_server.core.process._COLLECT_SECONDS", 0.0)
    before, active = (gc.get_threshold(), sys.getswitchinterval()), True
    async with responsive_interpreter(lambda: not active):
        assert sys.getswitchinterval() < 0.001
        part = Part()
        part.whole = part
        found = weakref.ref(part)
        gc.collect(1)  # from now on it is old
        del part
        for _ in range(2 * before[0][2]):
            gc.collect(1)
            await asyncio.sleep(0)
        assert found() is not None
        active = False
        while found() is not None:
            await asyncio.sleep(0)
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signal_ends_an_idle_server(number: int) -> None:
    with server_process() as process:
        async with ClientSession() as session, session.get(f"{process.said}/health") as response:
            assert response.status == 200
            process.send_signal(number)
            assert process.ending() == ["ended"]


async def test_a_hangup_that_was_ignored_before_stays_ignored() -> None:
    with server_process(ignored=signal.SIGHUP) as process:
        process.send_signal(signal.SIGHUP)
        async with ClientSession() as session, session.get(f"{process.said}/health") as response:
            assert response.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.ending() == ["ended"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_the_model_is_loaded(number: int) -> None:
    with server_process(FakeServer(loading=True)) as process:
        assert process.said == "loading"
        process.send_signal(number)
        assert process.ending() == []


async def test_while_it_drains_new_work_and_probes_are_answered() -> None:
    with server_process(FakeServer(hold=2)) as process:
        url = process.said
        async with ClientSession() as session, session.post(f"{url}/v1/completions", json=STREAM) as response:
            await response.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            status = 200
            while status == 200:
                async with ClientSession() as other, other.get(f"{url}/health") as health:
                    status, body = health.status, await health.json()
            assert (status, body["status"]) == (503, "closing")
            async with session.post(f"{url}/v1/completions", json=STREAM) as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
                assert (await refused.json())["error"]["code"] == "closing"
        assert process.ending() == ["ended"]  # its one request was abandoned


async def test_second_signal_ends_at_once() -> None:
    with server_process(FakeServer(hold=2, drain_seconds=60)) as process:
        url = process.said
        async with ClientSession() as session, session.post(f"{url}/v1/completions", json=STREAM) as response:
            await response.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            status = 200
            while status == 200:
                async with session.get(f"{url}/health") as health:
                    status = health.status
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 128 + signal.SIGTERM


async def test_running_request_beyond_the_drain_gets_an_error_event() -> None:
    with server_process(FakeServer(hold=2, drain_seconds=0.1)) as process:
        async with ClientSession() as session, session.post(f"{process.said}/v1/completions", json=STREAM) as response:
            await response.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            *_, last, nothing = (await response.text()).split("\n\n")
        assert nothing == ""
        assert parse_event(last)["error"]["code"] == "closing"
        assert process.ending() == ["ended"]


async def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with server_process(FakeServer(unix_socket=path)) as process:
        assert process.said == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        connector = UnixConnector(str(path))
        async with ClientSession(connector=connector) as session, session.get("http://localhost/v1/models") as response:
            assert response.status == 200
        with pytest.raises(OSError, match=f"can't listen on {path}: another server uses it"):
            run(load_nothing, ServerSettings(unix_socket=path), lambda info, url: None)
        process.send_signal(signal.SIGTERM)
        assert process.ending() == ["ended"]
    assert not path.exists()


def test_a_file_at_the_place_of_a_unix_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(OSError, match=f"can't listen on {path}: there is a file that is no socket"):
        run(load_nothing, ServerSettings(unix_socket=path), lambda info, url: None)
    assert path.read_text() == "mine"


async def test_a_socket_that_systemd_passes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with systemd_process(listener) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url == f"http://127.0.0.1:{port}"
            async with ClientSession() as session, session.get(f"{url}/health") as response:
                assert response.status == 200
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=60)[0] == "ended\n"
            assert process.returncode == 0


@contextmanager
def systemd_process(listener: socket.socket) -> Iterator[subprocess.Popen[str]]:
    """Yield a process of a new Python that gets `listener` as from systemd."""

    def prepare() -> None:
        os.dup2(listener.fileno(), 3)
        os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))

    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=prepare, close_fds=False
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_signals_where_there_is_no_hangup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SIGHUP, as on Windows, the second signal ends the process, and the earlier handlers come back."""
    codes: list[int] = []
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr(os, "_exit", codes.append)
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        await stop.wait()
        assert codes == []
        signal.raise_signal(signal.SIGTERM)
        assert codes == [128 + signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_sockets_for_another_process_are_left_alone() -> None:
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": "1"}
    assert take_sockets(environment) == []
    assert environment["LISTEN_FDS"] == "1"


def test_the_service_manager_is_told(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        notify("READY=1", {"NOTIFY_SOCKET": str(path)})
        assert manager.recv(100) == b"READY=1"
    notify("READY=1", {})


async def test_a_service_manager_that_is_gone_stops_no_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(stale))
    for path in (stale, tmp_path / "none", tmp_path / ("x" * 200)):
        notify("READY=1", {"NOTIFY_SOCKET": str(path)})
        assert f"the service manager at {path} did not get READY=1" in caplog.messages[-1]
    with server_process(environment={"NOTIFY_SOCKET": str(stale)}) as process:
        async with ClientSession() as session, session.get(f"{process.said}/health") as response:
            assert response.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.ending() == ["ended"]


@pytest.mark.parametrize("count", ["many", "-1", ""])
def test_a_number_of_sockets_that_is_none_is_told(count: str) -> None:
    with pytest.raises(OSError, match=f"LISTEN_FDS is '{count}'; expected a number of sockets"):
        take_sockets({"LISTEN_FDS": count, "LISTEN_PID": str(os.getpid())})


async def load_nothing() -> FakeEngine:
    raise AssertionError("the address is checked first")


def test_port_in_use_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"can't listen on 127.0.0.1 port {port}: "):
            run(load_nothing, ServerSettings(port=port), lambda info, url: None)


def has_both_loopbacks() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_both_loopbacks(), reason="this computer has no IPv6")
@pytest.mark.parametrize("host", ["localhost", "LocalHost."])
def test_localhost_is_both_loopback_addresses(host: str) -> None:
    with open_listeners(ServerSettings(host=host, port=0)) as listeners:
        addresses = [listener.getsockname()[:2] for listener in listeners]
        port = addresses[0][1]
        assert addresses == [("127.0.0.1", port), ("::1", port)]
        assert url_of(listeners[0]) == f"http://127.0.0.1:{port}"
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"can't listen on ::1 port {port}: "):
            run(load_nothing, ServerSettings(host=host, port=port), lambda info, url: None)
    with open_listeners(ServerSettings(host="127.0.0.1", port=0)) as [listener]:
        assert listener.family == socket.AF_INET


def test_localhost_without_ipv6_is_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine_server.core.process._LOOPBACKS", ("127.0.0.1", "192.0.2.1"))
    with open_listeners(ServerSettings(host="localhost", port=0)) as [listener]:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.skipif(not has_both_loopbacks(), reason="this computer has no IPv6")
def test_a_free_port_is_free_at_both_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        ports = [taken.getsockname()[1], 0]  # what the system gives first is in use at the other address
        bind = own_process._bind

        def bind_first(host: str, port: int) -> socket.socket:
            return bind(host, ports.pop(0) if host == "127.0.0.1" and port == 0 and len(ports) else port)

        monkeypatch.setattr(own_process, "_bind", bind_first)
        monkeypatch.setattr(own_process, "_is_present", lambda _address: True)
        with open_listeners(ServerSettings(host="localhost", port=0)) as listeners:
            assert len({listener.getsockname()[1] for listener in listeners}) == 1


def test_address_of_another_machine_is_told() -> None:
    with pytest.raises(OSError, match="can't listen on 192"):
        run(load_nothing, ServerSettings(host="192.0.2.1", port=0), lambda info, url: None)


def test_engine_that_has_failed_for_good_ends_the_server_where_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine_server.core.app._LOOK_SECONDS", 0.001)
    engine = FakeEngine(condition=Health("failed", "the device did not come back"))

    async def load() -> FakeEngine:
        return engine

    with pytest.raises(EngineClosedError, match="the engine has failed for good: the device did not come back"):
        run(load, ServerSettings(port=0, exit_on_failure=True), lambda info, url: None)
    assert engine.closed
