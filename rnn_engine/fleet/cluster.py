"""Connect the server process (the front) to replicas on Ray: start Ray, deploy replicas on it, and call them."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
import socket
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager, suppress
from math import ceil
from threading import Event, Thread
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from rnn_engine.errors import InvalidRequestError, RnnEngineError
from rnn_engine.fleet.deployment import NAME, LoadReplica, make_application
from rnn_engine.fleet.remote import Front, RemoteEngine
from rnn_engine.fleet.settings import FleetSettings
from rnn_engine.fleet.wire import NOTHING_KNOWN, ReplicaLostError, Report
from rnn_engine.gpu import equal_devices

_CONNECT_SECONDS = 5.0  # to the head of a cluster
_SURVEY_SECONDS = 5.0  # for all reports
_ANSWER_SECONDS = 30.0  # for a question about the cache
_CALM = {"log_level": "WARNING", "enable_access_log": False}  # Serve's logging

_log = logging.getLogger(__name__)


def start_ray(settings: FleetSettings) -> None:
    """Join the fleet's Ray cluster, or start a cluster on this machine that ends with this process. Blocks.

    `auto` is the cluster that this machine belongs to. A cluster on this machine has room for the replicas on all GPUs
    that are as good for their device; they are counted here because Ray itself knows few makers' GPUs. Does nothing if
    Ray has been started. Raises InvalidRequestError for an address of Ray's client or for too few GPUs, DeviceError if
    there is no such GPU, and RnnEngineError if no cluster answers.
    """
    address = settings.address
    if address is not None and address != "auto":
        _check_address(address)
    if ray.is_initialized():
        return
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    own = {} if address is not None else _own_machine(settings)
    try:
        _init_for_good(address=address or "local", log_to_driver=False, logging_level="error", **own)
    except Exception as error:  # Ray raises plain exceptions
        raise RnnEngineError(f"Ray can't be reached at {address or 'this machine'}: {error}") from error
    serve.start(proxy_location="Disabled", logging_config=_CALM)


def _init_for_good(**settings: Any) -> None:  # noqa: ANN401 - Ray's
    """Call `ray.init` on a thread that never ends, and raise the exceptions of that call.

    Linux kills the processes that Ray has started when the thread that started them ends. If that happened before Ray's
    own end, at the exit of this process, Ray would wait long for processes that are gone.
    """
    started: Future[None] = Future()

    def start() -> None:
        try:
            ray.init(**settings)
        except BaseException as error:
            started.set_exception(error)
        else:
            started.set_result(None)
            Event().wait()

    Thread(target=start, name="rnn-engine ray", daemon=True).start()
    started.result()


def _check_address(address: str) -> None:
    """Raise InvalidRequestError unless it is HOST:PORT, and RnnEngineError if nothing listens there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        allowed = "HOST:PORT or auto, on a machine of the cluster"
        message = f"--address {address!r} is no address of a cluster; expected {allowed} (ray:// carries no streams)"
        raise InvalidRequestError("--address", address, allowed, message)
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RnnEngineError(f"no Ray cluster answers at {address}: {error}") from error


def _own_machine(settings: FleetSettings) -> dict[str, Any]:
    """Return the CPUs and GPUs of this machine for `ray.init`. Raises InvalidRequestError for too few GPUs."""
    replicas, resources = settings.replicas, settings.resources
    cpus = max(os.cpu_count() or 1, ceil(replicas * resources.cpus))
    gpus = 0
    if resources.gpus:
        gpus = sum(not each.is_software for each in equal_devices(settings.device))
        if gpus * int(1 / resources.gpus) < replicas:
            allowed = f"at most {1 / ceil(replicas / gpus):.3g}" if gpus else "0"
            reason = f"there are {gpus} GPUs for {replicas} replicas" if gpus else "WebGPU finds no GPU on this machine"
            message = f"--replica-gpus {resources.gpus:g} is too much, since {reason}; expected {allowed}"
            raise InvalidRequestError("--replica-gpus", resources.gpus, allowed, message)
    return {"num_cpus": cpus, "num_gpus": gpus, "include_dashboard": False}


def deploy(name: str, application: serve.Application) -> None:
    """Start or replace an application, and wait until its replicas run. Raises RnnEngineError if that fails."""
    try:
        serve.run(application, name=name, route_prefix=None, logging_config=_CALM)
    except RuntimeError as error:
        raise RnnEngineError(f"the replicas could not be started: {_failure(name) or error}") from error


def check_application(name: str) -> None:
    """Raise InvalidRequestError unless the Ray cluster runs an application of replicas called `name`. Blocks."""
    found = serve.status().applications
    names = [each for each, application in found.items() if NAME in application.deployments]
    if name not in names:
        there = f"there are: {', '.join(names)}" if names else "`serve deploy` starts one"
        message = f"--application: no application of replicas is called {name!r}; {there}"
        raise InvalidRequestError("--application", name, "the name of a running application", message)


def _failure(name: str) -> str | None:
    """Return Ray Serve's reason why the replicas of the application `name` fail to start; None if it gives none."""
    application = serve.status().applications.get(name)
    if application is None or NAME not in application.deployments:
        return None
    errors = re.findall(r"^[\w.]+(?:Error|Exception): (.+)$", application.deployments[NAME].message, re.MULTILINE)
    return errors[-1] if errors else None


class RayLinks:
    """A server process's connection to the replicas of a Ray Serve application. Implements `Links`."""

    def __init__(self, application: str, *, owned: bool) -> None:
        """Connect to the Ray Serve application called `application`. If `owned`, `close` deletes the application."""
        self._application = application
        self._owned = owned
        self._handle = serve.get_deployment_handle(NAME, application)

    async def survey(self, known: Mapping[str, int] = NOTHING_KNOWN) -> Sequence[Report] | None:
        try:
            answers = await self._handle.broadcast("report", dict(known)).results_async(
                timeout_s=_SURVEY_SECONDS, return_exceptions=True
            )
        except TimeoutError:  # Ray waits for the slowest
            _log.warning("not all replicas answer within %g s", _SURVEY_SECONDS)
            return None
        except (RayServeException, RayError) as error:
            _log.warning("the replicas do not answer: %s", error)
            return []
        for answer in answers:
            if isinstance(answer, RayTaskError):  # the replica is well, but the call in it has failed
                _log.warning("a replica is left out, since its report fails: %s", answer)
        return [pickle.loads(answer) for answer in answers if isinstance(answer, bytes)]

    async def run(self, replica: str, front: str, key: int, call: bytes) -> None:
        response = self._handle.run.remote(replica, front, key, call)
        try:
            with _losing(replica):
                await response
        except asyncio.CancelledError:
            response.cancel()
            raise

    async def parcels(self, replica: str, front: str) -> AsyncGenerator[bytes]:
        stream = self._handle.options(stream=True).parcels.remote(replica, front)
        try:
            with _losing(replica):
                async for parcel in stream:
                    yield parcel
        finally:
            stream.cancel()

    async def hold(self, replica: str, front: str, key: int, held: bool) -> None:
        with suppress(ReplicaLostError), _losing(replica):
            await asyncio.wait_for(self._handle.hold.remote(replica, front, key, held), _ANSWER_SECONDS)

    async def ask(self, replica: str, question: bytes) -> bytes:
        with _losing(replica):
            answer: bytes = await asyncio.wait_for(self._handle.ask.remote(replica, question), _ANSWER_SECONDS)
            return answer

    async def close(self) -> None:
        if self._owned:
            await asyncio.to_thread(serve.delete, self._application)


@contextmanager
def _losing(replica: str) -> Iterator[None]:
    """Within the `with` block, raise ReplicaLostError in place of Ray's exceptions for an unreachable replica."""
    try:
        yield
    except RayTaskError:  # the replica is well, but the call in it has failed
        raise
    except (RayError, RayServeException, TimeoutError) as error:
        raise ReplicaLostError(replica, type(error).__name__) from error


# Open a fleet from its settings: deploy or find the replicas on Ray, and make the engine that runs requests on them.


async def open_fleet(
    name: str, load: LoadReplica, open_front: Callable[[], Front], settings: FleetSettings, *, max_queued: int
) -> RemoteEngine:
    """Start the replicas that `settings` describe, or connect to running ones, and return an engine that uses them.

    The replicas are deployed here and removed by the engine's `close`. If `settings` name a running application, its
    replicas are used, and left running. `load` loads a replica's engine, and can be pickled. Raises what `start_ray`,
    `deploy`, `check_application` and `open_front` raise.
    """
    front = await asyncio.to_thread(open_front)
    owned = settings.application is None
    application = settings.application or f"{name}-{uuid.uuid4().hex[:8]}"  # others may serve the same model
    async with AsyncExitStack() as undo:
        undo.callback(front.close)
        await asyncio.to_thread(start_ray, settings)
        if owned:
            undo.push_async_callback(asyncio.to_thread, serve.delete, application)
            await asyncio.to_thread(deploy, application, make_application(load, settings))
        else:
            await asyncio.to_thread(check_application, application)
        links = RayLinks(application, owned=owned)
        engine = await RemoteEngine.open(links, front, max_queued=max_queued)
        undo.pop_all()
        return engine
