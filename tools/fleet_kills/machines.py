"""A fleet of the demo model with a shared store, as processes on one machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.support.store_server import SlowProxy, StoreServer
from tools.live_server.process import CLI, ServerProcess

SLOTS = 4  # of a replica

# The caches in memory are so small that most prompts continue from states in the store.
_KEPT = ("--cache-device-bytes", "0", "--cache-host-bytes", "1M")
_ENGINE = ("--device", "cpu", "--slots", str(SLOTS))
# Acknowledged changes survive a kill: each change is on the disk before it is answered.
_STORE = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "256mb")
_STORE_POLICY = ("--maxmemory-policy", "volatile-lru")


class Machines:
    """The processes of a fleet. A context manager: processes that still run at the end of the block are killed."""

    def __init__(self, folder: Path, replicas: int, options: Sequence[str] = ()) -> None:
        """Start the processes, with their files in `folder`. Blocks until the fleet takes requests.

        `options` go to `rnn-engine fleet`.
        """
        self.replicas = replicas
        with ExitStack() as undo:
            self.store = StoreServer(folder, *_STORE, *_STORE_POLICY)
            undo.callback(self.store.kill)
            self.network = SlowProxy(self.store.port, 0.0)
            undo.callback(self.network.close)
            fleet = ("--replicas", str(replicas), "--replica-cpus", "0.1", "--store", self.network.url)
            self.server = ServerProcess(folder / "log", (*_ENGINE, *_KEPT, *fleet, *options), command=(CLI, "fleet"))
            undo.callback(self.server.kill)
            self._undo = undo.pop_all()

    @property
    def num_slots(self) -> int:
        """The number of slots of all replicas together."""
        return self.replicas * SLOTS

    def replica_processes(self) -> list[psutil.Process]:
        """Return the processes of the running replicas, the oldest first."""
        below = psutil.Process(self.server.pid).children(recursive=True)
        return sorted(filter(_is_replica, below), key=lambda process: process.create_time())

    def restart_store(self, seconds: float) -> None:
        """Kill the store, and start it again after `seconds` with the data on its disk. Blocks."""
        self.store.kill()
        time.sleep(seconds)
        self.store.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._undo.close()


class OneEngine:
    """A server with one engine and no cache, whose answers are taken as right. A context manager."""

    def __init__(self, folder: Path) -> None:
        kept = ("--cache-device-bytes", "0", "--cache-host-bytes", "0", "--state-folder", str(folder / "states"))
        self.server = ServerProcess(folder / "log-of-one-engine", (*_ENGINE, *kept))

    def __enter__(self) -> str:
        return self.server.url

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.server.kill()


def _is_replica(process: psutil.Process) -> bool:
    try:
        return any("ServeReplica:" in word for word in process.cmdline()[:1])
    except psutil.Error:  # it has just ended
        return False
