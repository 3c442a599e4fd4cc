"""The state files of shared checkpoints, called bodies, in an object store: S3, Google Cloud, Azure or a folder.

The shared store has an index with the size of each body and when it was last used. With it the shared store counts the
bytes of all servers, and decides which bodies are evicted. Each body has a key in the index that expires, as a body in
the shared store does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from rnn_engine.errors import StateError, hide_credentials
from rnn_engine_states.shared.checkpoints import Bodies
from rnn_engine_states.shared.client import Lane, StoreClient, lua
from rnn_engine_states.shared.keys import PREFIX

T = TypeVar("T")

_ENTER, _USE, _LEAVE = lua("bodies", "enter_body"), lua("use_body"), lua("bodies", "leave_body")

_KEY = re.compile(rf"{PREFIX}(:\w+)+", re.ASCII)


class ObjectBodies(Bodies):
    """A store of bodies (checkpoints' state files) in an object store, with an index of them in the shared store.

    A body is written before it is entered in the index, and deleted after it was removed from the index. So the index
    may have a body that another server has deleted meanwhile. Such a body counts as missing.
    """

    def __init__(self, client: StoreClient, url: str, ttl: int, capacity: int) -> None:
        """Store at most `capacity` bytes of state files, of all models and servers together.

        A body that was not used for `ttl` seconds expires. `url`, of S3, Google Cloud Storage, Azure or a folder, was
        checked by `ObjectsConfig`. Raises StateError if the object store can't be opened.
        """
        try:
            self._store = from_url(url, mkdir=True) if url.startswith("file:") else from_url(url)
        except (BaseError, OSError) as error:
            raise StateError(f"the object store can't be opened: {hide_credentials(str(error))}") from error
        super().__init__(client, ttl)
        self._reading = client.add_lane("reading objects from", 32, reads=True)
        self._writing = client.add_lane("writing objects to", 4)
        self._capacity = capacity
        self._index = [f"{PREFIX}:objects:{part}" for part in ("used", "sizes", "total")]

    async def check(self) -> None:
        """Raise StateError if the object store denies access, and UnavailableError if it can't be reached."""
        await self._read("check")

    async def put(self, key: str, data: bytes) -> None:
        await self._run(self._writing, lambda: obstore.put_async(self._store, _path(key), data))
        gone = await self._script(_ENTER, key, self._ttl, len(data), self._capacity)
        for other in gone:
            if _KEY.fullmatch(name := other.decode(errors="replace")):
                await self._delete(name)
            else:
                self._client.note_unreadable("a key in the index of objects", repr(name))

    async def get(self, key: str) -> bytes | None:
        return await self._read(key) if await self.renew(key) else None

    async def renew(self, key: str) -> bool:
        return bool(await self._client.script(self._client.reading, _USE, [*self._index, key], self._ttl))

    async def delete(self, key: str) -> None:
        await self._script(_LEAVE, key)
        await self._delete(key)

    async def _script(self, text: str, key: str, *arguments: int) -> Any:  # noqa: ANN401
        return await self._client.script(self._client.writing, text, [*self._index, key], *arguments)

    async def _read(self, key: str) -> bytes | None:
        async def read() -> bytes | None:
            try:
                found = await obstore.get_async(self._store, _path(key))
                return bytes(await found.bytes_async())
            except (FileNotFoundError, NotFoundError):
                return None

        return await self._run(self._reading, read)

    async def _delete(self, key: str) -> None:
        async def delete() -> None:
            with suppress(FileNotFoundError, NotFoundError):  # raised by a folder, not by an object store
                await obstore.delete_async(self._store, _path(key))

        await self._run(self._writing, delete)

    async def _run(self, lane: Lane, work: Callable[[], Awaitable[T]]) -> T:
        async def told(_: object) -> T:
            try:
                return await work()
            except (PermissionDeniedError, UnauthenticatedError) as error:
                raise StateError(f"the object store refuses access: {hide_credentials(str(error))}") from error
            except BaseError as error:
                raise OSError(hide_credentials(str(error))) from error

        return await self._client.run(lane, told)


def _path(key: str) -> str:
    return key.replace(":", "/")
