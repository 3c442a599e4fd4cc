"""The named states in a shared store: their entries, arrays and leases, and a log of the most recent changes.

A change is a compare-and-set of all names together: it is made only if they have not changed since the server last read
them. Each server has a copy of the names, and updates it before every operation. All times are by the store's clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from valkey.asyncio import Valkey

from rnn_engine.errors import StorageError
from rnn_engine_states.shared.client import StoreClient
from rnn_engine_states.shared.entries import Change, ValueKey, decode_change, encode_change, space_of

MOST_CHANGES = 1000  # that are remembered; a server that has read none of them reads all names again

PROVISIONAL_SECONDS = 3600  # after which values expire if no name uses them yet

# The beginning of each script below: two Lua functions, and the store's time as `now`. `whole` parses a counter, as 0
# if it is not a whole number; `digits` formats a number without an exponent.
_TIME = """
local function whole(text)
    local number = tonumber(text)
    return number and number >= 0 and number < 2^53 and number % 1 == 0 and number or 0
end
local function digits(number) return string.format('%.0f', number) end
local time = redis.call('TIME')
local now = string.format('%d.%06d', time[1], time[2])
"""

# A script that reads the changes since a known revision, or all names if that revision is no longer logged. KEYS: the
# hash with the revision, then entries, leases, times of leases' last uses, and the log of changes. ARGV: the known
# revision's mark and number, and the time when it was read.
_READ = (
    _TIME
    + """
local head = redis.call('HMGET', KEYS[1], 'mark', 'revision', 'version')
local mark, revision, version = head[1] or '', whole(head[2]), whole(head[3])
local missing = revision - tonumber(ARGV[2])
local follows = ARGV[1] ~= '' and missing == 0 and mark == ARGV[1]
if missing > 0 and ARGV[1] ~= '' then
    local last = redis.call('LINDEX', KEYS[5], -missing - 1)
    follows = last and string.sub(last, 1, #ARGV[1]) == ARGV[1]
end
if follows then
    local changes = missing > 0 and redis.call('LRANGE', KEYS[5], -missing, -1) or {}
    local used = redis.call('ZRANGEBYSCORE', KEYS[4], ARGV[3], '+inf', 'WITHSCORES')
    return {now, mark, digits(revision), digits(version), 0, changes, {}, used}
end
return {now, mark, digits(revision), digits(version), 1, redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]),
    redis.call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES')}
"""
)

# A script that applies a change if the names still have the known revision and all needed arrays exist. KEYS: as for
# `_READ`, then arrays that must exist, then arrays to delete. ARGV: the known revision's mark and number, the new mark,
# the last version, the change, how many arrays must exist, how many changes are logged. The script may run while memory
# is full, since a change may free memory.
_CHANGE = (
    "#!lua flags=allow-oom\n"
    + _TIME
    + """
local head = redis.call('HMGET', KEYS[1], 'mark', 'revision')
if (head[1] or '') ~= ARGV[1] or whole(head[2]) ~= tonumber(ARGV[2]) then return 'conflict' end
local change, needed = cjson.decode(ARGV[5]), tonumber(ARGV[6])
for number = 6, 5 + needed do
    if redis.call('EXISTS', KEYS[number]) == 0 then return 'missing' end
end
redis.call('HSET', KEYS[1], 'mark', ARGV[3], 'revision', digits(ARGV[2] + 1), 'version', ARGV[4])
for _, id in ipairs(change.removed) do redis.call('HDEL', KEYS[2], id) end
for id, entry in pairs(change.entries) do redis.call('HSET', KEYS[2], id, entry) end
for owner, lease in pairs(change.leases) do
    redis.call('HSET', KEYS[3], owner, lease)
    redis.call('ZADD', KEYS[4], now, owner)
end
for _, owner in ipairs(change.ended) do
    redis.call('HDEL', KEYS[3], owner)
    redis.call('ZREM', KEYS[4], owner)
end
redis.call('RPUSH', KEYS[5], ARGV[3] .. ARGV[5])
redis.call('LTRIM', KEYS[5], -tonumber(ARGV[7]), -1)
for number = 6, 5 + needed do redis.call('PERSIST', KEYS[number]) end
for number = 6 + needed, #KEYS do redis.call('UNLINK', KEYS[number]) end
return 'done'
"""
)

# A script that restarts the time to live of an owner's lease. It returns 1, or 0 if the lease is invalid or expired.
# KEYS: leases, times of their last uses. ARGV: the owner.
_USE = (
    _TIME
    + """
local lease, used = redis.call('HGET', KEYS[1], ARGV[1]), redis.call('ZSCORE', KEYS[2], ARGV[1])
local understood, content = pcall(cjson.decode, lease)
local ttl = understood and type(content) == 'table' and tonumber(content.ttl)
if not ttl or not used or not (tonumber(used) + ttl > tonumber(now)) then return 0 end
redis.call('ZADD', KEYS[2], now, ARGV[1])
return 1
"""
)


@dataclass(frozen=True, slots=True)
class Revision:
    """The identity of one version of all named states in a shared store. Each change makes a new revision."""

    mark: bytes = b""  # its random id; empty if no revision is known
    number: int = 0
    read_at: float = 0.0  # by the store's clock


@dataclass(frozen=True, slots=True)
class NamesRead:
    """The result of reading the named states in a shared store: the changes since a known revision, or all states.

    All states are a single change. Texts and keys in the result have not been checked.
    """

    revision: Revision
    last_version: int
    complete: bool  # all names; else `changes` are to be applied to the known revision
    changes: Sequence[Change]  # one if complete
    used: Mapping[str, float]  # owner -> time of the last use of its lease; all, or those used since


class Commit(Enum):
    """The outcome of an attempt to change the named states in a shared store."""

    DONE = "done"
    CONFLICT = "conflict"  # another server has made a change
    MISSING = "missing"  # values that it needs are not in the store


class SharedNames:
    """Reads and changes the named states of one model in the store. Methods run on the client's thread.

    They raise the errors of `StoreClient.run`.
    """

    def __init__(self, client: StoreClient, model: str) -> None:
        """Access, by `client`, the named states in the shared store of the model with the fingerprint `model`."""
        self._client = client
        space = space_of(model)
        self._keys = [f"{space}:names:{part}" for part in ("head", "entries", "leases", "used", "changes")]
        self._values = f"{space}:value"

    async def read(self, known: Revision) -> NamesRead:
        """Return the changes of the named states since the revision `known`, or all states if those changes are lost.

        They are lost if the store no longer logs them, or if they can't be parsed.
        """
        arguments = (known.mark, known.number, repr(known.read_at))
        now, mark, number, version, complete, first, leases, used = await self._client.script(
            self._client.reading, _READ, self._keys, *arguments
        )
        revision = Revision(mark, int(number), float(now))
        if complete:
            changes = [Change(dict(_pairs(first)), leases=dict(_pairs(leases)))]
        else:
            try:
                changes = [decode_change(text) for text in first]
            except StorageError as error:
                self._client.note_unreadable("a change of the state names", error)
                return await self.read(Revision())
        when = {owner: float(score) for owner, score in _pairs(used)}
        return NamesRead(revision, int(version), bool(complete), changes, when)

    async def change(
        self,
        known: Revision,
        last_version: int,
        change: Change,
        needed: Sequence[ValueKey],
        unneeded: Sequence[ValueKey],
    ) -> tuple[Commit, Revision]:
        """Apply `change` to the named states if these still have the revision `known`.

        Return the outcome and the change's revision. Arrays that are `needed` must be in the store, and no longer
        expire. The `unneeded` arrays are deleted.
        """
        follows = Revision(secrets.token_hex(8).encode(), known.number + 1, known.read_at)
        text = encode_change(change)
        keys = [*self._keys, *map(self.value_key, needed), *map(self.value_key, unneeded)]
        arguments = (known.mark, known.number, follows.mark, last_version, text, len(needed), MOST_CHANGES)
        answer = await self._client.script(self._client.writing, _CHANGE, keys, *arguments)
        return Commit(answer.decode()), follows

    async def use(self, owner: str) -> bool:
        """Restart the time to live of an owner's lease. Return False if the owner has no lease or it has expired."""
        return bool(await self._client.script(self._client.reading, _USE, self._keys[2:4], owner))

    async def has_value(self, value: ValueKey) -> bool:
        """Return True if the shared store has the state file with this key.

        If it can expire, restart its `PROVISIONAL_SECONDS`.
        """
        key = self.value_key(value)

        async def ask(valkey: Valkey) -> list[Any]:
            async with valkey.pipeline(transaction=False) as pipeline:
                pipeline.expire(key, PROVISIONAL_SECONDS, xx=True)
                pipeline.exists(key)
                return cast("list[Any]", await pipeline.execute())

        return bool((await self._client.run(self._client.reading, ask))[1])

    async def put_value(self, value: ValueKey, data: bytes) -> None:
        """Write the arrays of a named state to the store, as the state file `data`, unless the store has them.

        They expire after `PROVISIONAL_SECONDS`, unless a change needs them before.
        """
        key = self.value_key(value)
        await self._client.command(self._client.writing, "SET", key, data, "EX", PROVISIONAL_SECONDS, "NX")
        self._client.count_bytes(written=len(data))

    async def get_value(self, value: ValueKey) -> bytes | None:
        """Return the state file with the arrays of a named state, or None if the store does not have it."""
        key = self.value_key(value)
        data: bytes | None = await self._client.command(self._client.reading, "GET", key)
        self._client.count_bytes(read=0 if data is None else len(data))
        return data

    async def delete_value(self, value: ValueKey) -> None:
        """Delete the state file with the arrays of a named state, if the store has it."""
        await self._client.command(self._client.writing, "UNLINK", self.value_key(value))

    def value_key(self, value: ValueKey) -> str:
        """Return the store's key for the arrays of a named state."""
        digest, has_logits = value
        return f"{self._values}:{digest}:{int(has_logits)}"


def _pairs(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    texts = [item.decode(errors="surrogateescape") for item in flat]
    return list(zip(texts[::2], texts[1::2], strict=True))
