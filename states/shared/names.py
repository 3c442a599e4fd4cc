"""The names in a shared store: what stands for each, the leases, and the changes that were made last.

A change is a compare-and-set of all names together: it is made only where nobody has changed them since they were read
last. Each server has a copy, and reads before it does anything else what has changed since. The time is the store's.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from valkey.asyncio import Valkey

from rnn_engine.errors import StorageError
from states.shared.client import StoreClient, execute, run_script
from states.shared.entries import Change, ValueKey, decode_change, encode_change, space_of

MOST_CHANGES = 1000  # that are remembered; whoever has read none of them reads all names again

PROVISIONAL_SECONDS = 3600  # that values stay which no name stands for yet

# `whole` is the number of a counter, 0 where it can't be understood; `digits` writes one without an exponent.
_TIME = """
local function whole(text)
    local number = tonumber(text)
    return number and number >= 0 and number < 2^53 and number % 1 == 0 and number or 0
end
local function digits(number) return string.format('%.0f', number) end
local time = redis.call('TIME')
local now = string.format('%d.%06d', time[1], time[2])
"""

# KEYS: head, entries, leases, used, changes. ARGV: mark and revision that are known, and the time of that.
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

# KEYS: as above, then values that must be there, then values that go. ARGV: mark and revision that are known, the new
# mark, the last version, the change, how many values must be there. It frees memory too, so it may run without any.
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

# KEYS: leases, used. ARGV: the owner. Whether its lease can be understood and lasts, whose time begins anew then.
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
    """Which state of all names is meant."""

    mark: bytes = b""  # of its own; none is known
    number: int = 0
    read_at: float = 0.0  # by the store's clock


@dataclass(frozen=True, slots=True)
class NamesRead:
    """What has changed since a revision, or all. Texts and keys are as the store has them, whatever that is."""

    revision: Revision
    last_version: int
    complete: bool  # else `changes` follow on what is known
    changes: Sequence[Change]  # one where it is complete
    used: Mapping[str, float]  # owner -> when its lease was used last; those that changed, or all


class Commit(Enum):
    """What became of a change."""

    DONE = "done"
    CONFLICT = "conflict"  # somebody else has made one
    MISSING = "missing"  # values that it needs are not in the store


class SharedNames:
    """The names of one model. Methods raise what `StoreClient.run` raises, and run on the client's thread."""

    def __init__(self, client: StoreClient, model: str) -> None:
        """`model` is the fingerprint of the model whose states these are."""
        self._client = client
        space = space_of(model)
        self._keys = [f"{space}:names:{part}" for part in ("head", "entries", "leases", "used", "changes")]
        self._values = f"{space}:value"

    async def read(self, known: Revision) -> NamesRead:
        """Return what has changed since `known`, or all where that can't be understood."""
        arguments = (known.mark, known.number, repr(known.read_at))
        now, mark, number, version, complete, first, leases, used = await self._client.run(
            self._client.reading, lambda valkey: run_script(valkey, _READ, self._keys, *arguments)
        )
        revision = Revision(mark, int(number), float(now))
        if complete:
            changes = [Change(dict(_pairs(first)), leases=dict(_pairs(leases)))]
        else:
            try:
                changes = [decode_change(text) for text in first]
            except StorageError as error:
                self._client.note_unreadable("a change of the names", error)
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
        """Make a change where nobody has made one since `known`; return also the revision that follows then.

        Values that it needs stay from now on.
        """
        follows = Revision(secrets.token_hex(8).encode(), known.number + 1, known.read_at)
        text = encode_change(change)
        keys = [*self._keys, *map(self.value_key, needed), *map(self.value_key, unneeded)]
        arguments = (known.mark, known.number, follows.mark, last_version, text, len(needed), MOST_CHANGES)
        answer = await self._client.run(
            self._client.writing, lambda valkey: run_script(valkey, _CHANGE, keys, *arguments)
        )
        return Commit(answer.decode()), follows

    async def use(self, owner: str) -> bool:
        """Begin the time of an owner's lease anew; whether it had one that lasts."""
        keys = self._keys[2:4]
        return bool(await self._client.run(self._client.reading, lambda valkey: run_script(valkey, _USE, keys, owner)))

    async def has_value(self, value: ValueKey) -> bool:
        """Whether the store has these values, and will have them for a while."""
        key = self.value_key(value)

        async def ask(valkey: Valkey) -> list[Any]:
            async with valkey.pipeline(transaction=False) as pipeline:
                pipeline.expire(key, PROVISIONAL_SECONDS, xx=True)
                pipeline.exists(key)
                return cast("list[Any]", await pipeline.execute())

        return bool((await self._client.run(self._client.reading, ask))[1])

    async def put_value(self, value: ValueKey, data: bytes) -> None:
        """Keep a state file for a while; it stays where a change needs it."""
        key = self.value_key(value)
        await self._client.run(
            self._client.writing,
            lambda valkey: cast("Awaitable[Any]", valkey.set(key, data, ex=PROVISIONAL_SECONDS, nx=True)),
        )
        self._client.count_bytes(written=len(data))

    async def get_value(self, value: ValueKey) -> bytes | None:
        """Return a state file; None where it is not there."""
        key = self.value_key(value)
        data: bytes | None = await self._client.run(
            self._client.reading, lambda valkey: cast("Awaitable[bytes | None]", valkey.get(key))
        )
        self._client.count_bytes(read=0 if data is None else len(data))
        return data

    async def delete_value(self, value: ValueKey) -> None:
        """Delete a state file. Does nothing where it is not there."""
        key = self.value_key(value)
        await self._client.run(self._client.writing, lambda valkey: execute(valkey, "UNLINK", key))

    def value_key(self, value: ValueKey) -> str:
        """The name of values in the store."""
        digest, has_logits = value
        return f"{self._values}:{digest}:{int(has_logits)}"


def _pairs(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    texts = [item.decode(errors="surrogateescape") for item in flat]
    return list(zip(texts[::2], texts[1::2], strict=True))
