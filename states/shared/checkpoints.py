"""Checkpoints in a shared store: of each a state file, and a hash with what an inquiry wants to know of it.

Files are not written by scripts: the store would copy each twice more. So either may be there without the other. They
are `Bodies`, which may lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from states.cache.checkpoint import CheckpointKind
from states.shared.bodies import Bodies
from states.shared.client import StoreClient, execute, run_script
from states.shared.keys import PathKeys, bit_of, lengths_in

# KEYS: the checkpoint, the bitmap of its block, those of all blocks before, which may be empty: they say that a path
# leads through. ARGV: seconds, bit, logits, kind, size.
_PUT = """
redis.call('HSET', KEYS[1], 'logits', ARGV[3], 'kind', ARGV[4], 'size', ARGV[5])
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('SETBIT', KEYS[2], ARGV[2], 1)
redis.call('EXPIRE', KEYS[2], ARGV[1])
for number = 3, #KEYS do
    if redis.call('EXPIRE', KEYS[number], ARGV[1]) == 0 then redis.call('SET', KEYS[number], '', 'EX', ARGV[1]) end
end
"""

# KEYS: checkpoints, the longest first. ARGV: 1 where the first one serves only with logits, then the kinds that there
# are. Returns how many can't be understood, which are deleted, and what is known of the first that serves.
_FIND = """
local kinds, unreadable = {}, 0
for number = 2, #ARGV do kinds[ARGV[number]] = true end
for number, key in ipairs(KEYS) do
    local found = redis.pcall('HMGET', key, 'logits', 'kind', 'size')
    local logits, kind, size = found[1], found[2], found[3]
    local is_there = found.err or logits or kind or size
    if is_there and not ((logits == '0' or logits == '1') and kinds[kind] and string.match(size or '', '^[1-9]%d*$')
            and #size <= 15) then
        redis.call('UNLINK', key)
        unreadable = unreadable + 1
    elseif is_there and (logits == '1' or number > 1 or ARGV[1] == '0') then
        return {unreadable, number, logits, kind, size}
    end
end
return {unreadable}
"""

# KEYS: as for what is put. ARGV: seconds, bit, logits. Keeps a checkpoint that is there for longer; its block's bitmap
# may have given way meanwhile.
_RENEW = """
local logits = redis.call('HGET', KEYS[1], 'logits')
if logits ~= '1' and logits ~= ARGV[3] then return 0 end
local bit = redis.pcall('SETBIT', KEYS[2], ARGV[2], 1)
if type(bit) == 'table' then return 0 end
for number = 1, #KEYS do redis.call('EXPIRE', KEYS[number], ARGV[1]) end
return 1
"""

_KINDS = tuple(kind.value for kind in CheckpointKind)
_MOST_ASKED = 512  # checkpoints that one inquiry asks for


@dataclass(frozen=True, slots=True)
class Listed:
    """What the store says of a checkpoint."""

    length: int  # tokens
    has_logits: bool
    kind: CheckpointKind
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Along:
    """What the store has along a path."""

    known: int  # tokens along which some path in the store leads, in whole blocks; it may lead on further
    longest: Listed | None  # the longest checkpoint that serves


class CheckpointStore:
    """The checkpoints of one model. All methods raise what `StoreClient.run` raises, and run on the client's thread."""

    def __init__(self, client: StoreClient, bodies: Bodies, ttl: int) -> None:
        """`bodies` has the state files. A checkpoint that is not used for `ttl` seconds expires."""
        self._client = client
        self._bodies = bodies
        self._ttl = ttl

    async def find(self, path: PathKeys, shortest: int, longest: int) -> Along:
        """Return the longest checkpoint on a path between two lengths; one at the path's end needs its logits."""
        blocks = path.blocks()
        bitmaps: list[bytes | None] = await self._client.run(
            self._client.reading, lambda valkey: execute(valkey, "MGET", *(block.lengths_key for block in blocks))
        )
        found = [(block, bits) for block, bits in zip(blocks, bitmaps, strict=True) if bits is not None]
        known = found[-1][0].start if found else 0
        lengths = [length for block, bits in found for length in lengths_in(block, bits)]
        wanted = [length for length in lengths if shortest <= length <= longest][-_MOST_ASKED:]
        return Along(known, await self._longest_of(path, wanted))

    async def _longest_of(self, path: PathKeys, lengths: Sequence[int]) -> Listed | None:
        """Return the longest of these checkpoints that serves. The store knows lengths of some that are gone."""
        if not lengths:
            return None
        keys = path.checkpoints(lengths)
        needs_logits = "1" if lengths[-1] == path.length else "0"
        found = await self._client.run(
            self._client.reading, lambda valkey: run_script(valkey, _FIND, list(reversed(keys)), needs_logits, *_KINDS)
        )
        unreadable, *serving = found
        for _ in range(unreadable):
            self._client.note_unreadable("what is known of a checkpoint", "it has no such kind, size or logits")
        if not serving:
            return None
        number, logits, kind, size = serving
        return Listed(lengths[-number], logits == b"1", CheckpointKind(kind.decode()), int(size))

    async def get(self, path: PathKeys) -> bytes | None:
        """Return the state file of the checkpoint at a path's end, and keep it for longer."""
        data = await self._bodies.get(_file_of(path))
        self._client.count_bytes(read=0 if data is None else len(data))
        return data

    async def renew(self, path: PathKeys, *, has_logits: bool) -> bool:
        """Keep the checkpoint at a path's end for longer, if the store has it; with logits, where they are wanted."""
        if not await self._bodies.renew(_file_of(path)):
            return False
        keys, arguments = _keys_of(path), (self._ttl, bit_of(path.length), int(has_logits))
        answer = await self._client.run(
            self._client.reading, lambda valkey: run_script(valkey, _RENEW, keys, *arguments)
        )
        return bool(answer)

    async def put(self, path: PathKeys, data: bytes, *, has_logits: bool, kind: str) -> None:
        """Keep a state file as the checkpoint at a path's end."""
        arguments = (self._ttl, bit_of(path.length), int(has_logits), kind, len(data))
        await self._bodies.put(_file_of(path), data)
        await self._client.run(
            self._client.writing, lambda valkey: run_script(valkey, _PUT, _keys_of(path), *arguments)
        )
        self._client.count_bytes(written=len(data))

    async def delete(self, path: PathKeys) -> None:
        """Delete the checkpoint at a path's end."""
        [key] = path.checkpoints([path.length])
        await self._client.run(self._client.writing, lambda valkey: execute(valkey, "UNLINK", key))
        await self._bodies.delete(_file_of(path))


def _keys_of(path: PathKeys) -> list[str]:
    last, *before = [block.lengths_key for block in reversed(path.blocks())]
    return [path.checkpoints([path.length])[0], last, *before]


def _file_of(path: PathKeys) -> str:
    return f"{path.checkpoints([path.length])[0]}:file"
