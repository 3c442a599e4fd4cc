"""Store and find checkpoints in a shared store.

The scripts do not write the state files, since the store would copy each file twice more. So the store may have the
record of a checkpoint without its file, or the file without the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.cache.tiers.tier import FoundCopy
from rnn_engine_states.shared.client import StoreClient, lua
from rnn_engine_states.shared.keys import PathKeys, bit_of, lengths_in
from rnn_engine_states.tokens import TOKEN_BYTES

_PUT, _FIND, _RENEW = lua("put_checkpoint"), lua("find_checkpoint"), lua("renew_checkpoint")

_KINDS = tuple(kind.value for kind in CheckpointKind)
_MOST_ASKED = 512  # checkpoints that one inquiry may ask for


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The shared store's answer about a prompt: its longest checkpoint, and the prefix shared with other paths."""

    root: str
    known: bytes  # packed; the prefix of the prompt, in whole blocks, that another server's path shares
    found: FoundCopy | None  # the longest copy from which the prompt can go on


class CheckpointStore:
    """A model's checkpoints in a shared store. For the client's thread; raises as `StoreClient.run` does."""

    def __init__(self, client: StoreClient, ttl: int) -> None:
        """Store files and records by `client`; both expire `ttl` seconds after their last use."""
        self._client = client
        self._ttl = ttl

    async def find(self, path: PathKeys, shortest: int, longest: int) -> StoreAnswer:
        """Find the longest checkpoint of `shortest` to `longest` tokens; one at the very end needs logits."""
        blocks = path.blocks()
        keys = [block.lengths_key for block in blocks]
        bitmaps: list[bytes | None] = await self._client.command(self._client.reading, "MGET", *keys)
        found = [(block, bits) for block, bits in zip(blocks, bitmaps, strict=True) if bits is not None]
        known = path.tokens[: found[-1][0].start * TOKEN_BYTES if found else 0]
        lengths = [length for block, bits in found for length in lengths_in(block, bits)]
        wanted = [length for length in lengths if shortest <= length <= longest][-_MOST_ASKED:]
        return StoreAnswer(path.root, known, await self._longest_of(path, wanted))

    async def _longest_of(self, path: PathKeys, lengths: Sequence[int]) -> FoundCopy | None:
        """Return the longest usable checkpoint of these lengths, some of which may be gone, or None."""
        if not lengths:
            return None
        keys = path.checkpoints(lengths)[::-1]
        needs_logits = "1" if lengths[-1] == path.length else "0"
        found = await self._client.script(self._client.reading, _FIND, keys, needs_logits, *_KINDS)
        unreadable, *serving = found
        for _ in range(unreadable):
            self._client.note_unreadable("the record of a checkpoint", "its kind, size or logits are not valid")
        if not serving:
            return None
        number, logits, kind, size = serving
        tokens = path.tokens[: lengths[-number] * TOKEN_BYTES]
        return FoundCopy(keys[number - 1], path.root, tokens, CheckpointKind(kind.decode()), logits == b"1", int(size))

    async def get(self, path: PathKeys) -> bytes | None:
        """Return a path's state file, or None, and restart its time to live if that succeeds."""
        data, _ = await asyncio.gather(
            self._read_file(path), self._renew_record(path, has_logits=False), return_exceptions=True
        )
        if isinstance(data, BaseException):
            raise data
        self._client.count_bytes(read=0 if data is None else len(data))
        return data

    async def _read_file(self, path: PathKeys) -> bytes | None:
        command = ("GETEX", _file_of(path), "EX", self._ttl)
        data: bytes | None = await self._client.command(self._client.reading, *command)
        return data

    async def renew(self, path: PathKeys, *, has_logits: bool) -> bool:
        """Restart a checkpoint's time to live; return False if it, or the logits asked for, are missing."""
        has_file = await self._client.command(self._client.reading, "EXPIRE", _file_of(path), self._ttl)
        return bool(has_file) and await self._renew_record(path, has_logits=has_logits)

    async def _renew_record(self, path: PathKeys, *, has_logits: bool) -> bool:
        """Restart the time to live of a record and bitmaps; return False if it, or logits asked for, are missing."""
        keys, arguments = _keys_of(path), (self._ttl, bit_of(path.length), int(has_logits))
        return bool(await self._client.script(self._client.reading, _RENEW, keys, *arguments))

    async def put(self, path: PathKeys, data: bytes, *, has_logits: bool, kind: str) -> None:
        """Write a state file and a record to the shared store, as the checkpoint at the end of a token path."""
        arguments = (self._ttl, bit_of(path.length), int(has_logits), kind, len(data))
        await self._client.command(self._client.writing, "SET", _file_of(path), data, "EX", self._ttl)
        await self._client.script(self._client.writing, _PUT, _keys_of(path), *arguments)
        self._client.count_bytes(written=len(data))

    async def delete(self, path: PathKeys) -> None:
        """Delete the checkpoint at the end of a token path from the shared store: its record and its state file."""
        [key] = path.checkpoints([path.length])
        await self._client.command(self._client.writing, "UNLINK", key, _file_of(path))


def _keys_of(path: PathKeys) -> list[str]:
    last, *before = [block.lengths_key for block in reversed(path.blocks())]
    return [path.checkpoints([path.length])[0], last, *before]


def _file_of(path: PathKeys) -> str:
    return f"{path.checkpoints([path.length])[0]}:file"
