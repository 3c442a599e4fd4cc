"""The state files of shared checkpoints, called bodies, in the shared store itself."""

from __future__ import annotations

from typing import Protocol

from rnn_engine_states.shared.client import StoreClient


class Bodies(Protocol):
    """The interface of a store of bodies, the state files of checkpoints, by key.

    Methods raise the errors of `StoreClient.run`, and run on the client's thread.
    """

    async def put(self, key: str, data: bytes) -> None:
        """Store the state file `data` of a checkpoint under `key`. It expires if it is not used for some time."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Return a checkpoint's state file, which is stored under `key`, and mark it as used.

        Return None if it does not exist.
        """
        ...

    async def renew(self, key: str) -> bool:
        """Mark a checkpoint's state file, which is stored under `key`, as used. Return False if it does not exist."""
        ...

    async def delete(self, key: str) -> None:
        """Delete a checkpoint's state file, which is stored under `key`. Does nothing if it does not exist."""
        ...


class StoredBodies:
    """A store of bodies (checkpoints' state files) in the shared store itself."""

    def __init__(self, client: StoreClient, ttl: int) -> None:
        """Store state files by `client` in the shared store. One expires if it was not used for `ttl` seconds."""
        self._client = client
        self._ttl = ttl

    async def put(self, key: str, data: bytes) -> None:
        await self._client.command(self._client.writing, "SET", key, data, "EX", self._ttl)

    async def get(self, key: str) -> bytes | None:
        data: bytes | None = await self._client.command(self._client.reading, "GETEX", key, "EX", self._ttl)
        return data

    async def renew(self, key: str) -> bool:
        return bool(await self._client.command(self._client.reading, "EXPIRE", key, self._ttl))

    async def delete(self, key: str) -> None:
        await self._client.command(self._client.writing, "UNLINK", key)
