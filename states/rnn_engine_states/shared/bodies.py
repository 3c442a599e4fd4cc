"""The state files of shared checkpoints, called bodies, in the shared store itself."""

from __future__ import annotations

from rnn_engine_states.shared.client import StoreClient


class Bodies:
    """The state files of checkpoints by key, here in the shared store; on the client's thread, which may raise."""

    def __init__(self, client: StoreClient, ttl: int) -> None:
        """Store state files by `client` in the shared store. One expires if it was not used for `ttl` seconds."""
        self._client = client
        self._ttl = ttl

    async def put(self, key: str, data: bytes) -> None:
        """Store the state file `data` of a checkpoint under `key`. It expires if it is not used for some time."""
        await self._client.command(self._client.writing, "SET", key, data, "EX", self._ttl)

    async def get(self, key: str) -> bytes | None:
        """Return and mark as used a checkpoint's state file, or None if there is none."""
        data: bytes | None = await self._client.command(self._client.reading, "GETEX", key, "EX", self._ttl)
        return data

    async def renew(self, key: str) -> bool:
        """Mark a checkpoint's state file, which is stored under `key`, as used. Return False if it does not exist."""
        return bool(await self._client.command(self._client.reading, "EXPIRE", key, self._ttl))

    async def delete(self, key: str) -> None:
        """Delete a checkpoint's state file, which is stored under `key`. Does nothing if it does not exist."""
        await self._client.command(self._client.writing, "UNLINK", key)
