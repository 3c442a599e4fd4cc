"""Writers of named states that stop at an error, and a check of the states that another server finds in the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from aiohttp import ClientSession

from rnn_engine.fleet.remote import open_front
from states.shared.client import StoreUrl
from states.shared.config import StoreConfig
from tools.kill.ledger import Ledger
from tools.kill.writers import StateWriter
from tools.live_server.caller import Caller, RefusedError

_WRITERS = 2
_TIMEOUT = 10.0  # of the other server, seconds


@dataclass
class Names:
    """The acknowledged named states, and the errors of refused changes."""

    url: str
    session: ClientSession
    random: Random
    ledger: Ledger = field(default_factory=Ledger)
    refused: list[RefusedError] = field(default_factory=list)

    async def write(self, stopping: asyncio.Event) -> None:
        """Run the writers until `stopping` is set; a writer ends earlier if a change is refused.

        The caller must call `check` before it writes again, since a refused change may have been made nevertheless.
        """
        callers = [Caller(self.session, self.url, Random(self.random.random()), 0) for _ in range(_WRITERS)]
        writers = [StateWriter(caller, self.ledger, number) for number, caller in enumerate(callers)]
        await asyncio.gather(*(self._write(writer, stopping) for writer in writers))

    async def _write(self, writer: StateWriter, stopping: asyncio.Event) -> None:
        try:
            while not stopping.is_set():
                await writer.write()
        except RefusedError as error:
            self.refused.append(error)

    async def check(self, model: Path, store: str) -> list[str]:
        """Compare with the states in the store, as a new server reads them. Return a description of each fault."""
        front = await asyncio.to_thread(open_front, model, store=StoreConfig(StoreUrl.parse(store), timeout=_TIMEOUT))
        try:
            listed = (await front.states.list()).entries
            found = {entry.name: (await front.states.get(entry.name)).frozen.digest for entry in listed}
        finally:
            front.close()
        return self.ledger.check(found)
