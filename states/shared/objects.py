"""Objects by key in an object store: S3, Google Cloud Storage, Azure, or a folder that all servers see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from rnn_engine.errors import StateError
from states.shared.client import Lane, StoreClient

T = TypeVar("T")


class Objects:
    """The objects of a place. All methods raise what `StoreClient.run` raises, and run on the client's thread."""

    def __init__(self, url: str, client: StoreClient) -> None:
        """`url` is one that `ObjectsConfig.parse` has checked. Operations are bounded as those of `client` are.

        Raises StateError where there can be no such place.
        """
        try:
            self._store = from_url(url, mkdir=True) if url.startswith("file:") else from_url(url)
        except (BaseError, OSError) as error:
            raise StateError(f"the object store can't be opened: {error}") from error
        self._client = client
        self._reading = client.add_lane("reading objects from", 32, reads=True)
        self._writing = client.add_lane("writing objects to", 4)

    async def check(self) -> None:
        """Raise StateError where the object store refuses whoever asks, UnavailableError where it is not reached."""
        await self.get("check")

    async def put(self, key: str, data: bytes) -> None:
        """Write an object, in place of one that is there."""
        await self._run(self._writing, lambda: obstore.put_async(self._store, _path(key), data))

    async def get(self, key: str) -> bytes | None:
        """Return an object; None where it is not there."""

        async def read() -> bytes | None:
            try:
                found = await obstore.get_async(self._store, _path(key))
                return bytes(await found.bytes_async())
            except (FileNotFoundError, NotFoundError):
                return None

        return await self._run(self._reading, read)

    async def delete(self, key: str) -> None:
        """Delete an object. Does nothing where it is not there."""

        async def delete() -> None:
            try:
                await obstore.delete_async(self._store, _path(key))
            except (FileNotFoundError, NotFoundError):  # an object store does not tell, a folder does
                return

        await self._run(self._writing, delete)

    async def _run(self, lane: Lane, work: Callable[[], Awaitable[T]]) -> T:
        async def told(_: object) -> T:
            try:
                return await work()
            except (PermissionDeniedError, UnauthenticatedError) as error:
                raise StateError(f"the object store refuses what it is asked: {error}") from error
            except BaseError as error:
                raise OSError(str(error)) from error

        return await self._client.run(lane, told)


def _path(key: str) -> str:
    return key.replace(":", "/")
