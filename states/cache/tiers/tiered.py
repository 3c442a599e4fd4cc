"""The tiers as one: where a new state goes, how copies move down when a tier is full and up when they are hit.

A checkpoint may have a copy in several tiers. A copy that gives way in one is first made in the next, unless it has
one there: device -> host -> disk -> gone. A hit copies it up and leaves what is below, so that the quick copy gives
way without a transfer. Held checkpoints (pinned or locked) keep all their copies.

Called on the thread that owns the device. Knows the tiers; knows no tokens and no tree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rnn_engine.types import F32
from states.cache.checkpoint import Checkpoint, MissReason, Tier
from states.cache.counters import Counters
from states.cache.device import LiveStates
from states.cache.eviction import EvictionQueue
from states.cache.fetch import Fetch, Fetches
from states.cache.tiers.device import DeviceTier
from states.cache.tiers.disk import DiskTier
from states.cache.tiers.host import HostTier
from states.payload import Payload

_log = logging.getLogger(__name__)


class TieredStore:
    """`on_lost` is told of every checkpoint that has just lost its last copy."""

    def __init__(
        self,
        live: LiveStates,
        device: DeviceTier | None,
        host: HostTier,
        disk: DiskTier | None,
        counters: Counters,
        on_lost: Callable[[Checkpoint], None],
        fetch_capacity: int,
    ) -> None:
        self._live = live
        self._device = device
        self._host = host
        self._disk = disk
        self._counters = counters
        self._on_lost = on_lost
        self._fetches = Fetches(fetch_capacity, self.touch)

    @property
    def ledgers(self) -> tuple[EvictionQueue, ...]:
        """The books of the tiers that there are."""
        return tuple(tier.ledger for tier in (self._device, self._host, self._disk) if tier is not None)

    @property
    def device_logits_bytes(self) -> int:
        """What the device tier's logits take on the host."""
        return 0 if self._device is None else self._device.logits_bytes

    def save(self, checkpoint: Checkpoint, slot: int, logits: F32 | None) -> bool:
        """Keep the live state of `slot` in the quickest tier that has or makes room. False where none does."""
        checkpoint.has_logits = logits is not None
        tier = self._save_on_device(checkpoint, slot, logits)
        if tier is None:
            tier = self._put_on_host_or_disk(checkpoint, Payload(self._live.read_state(slot), logits))
        if tier is None:
            self._counters.not_stored += 1
            return False
        self._counters.stored[tier] += 1
        return True

    @property
    def any_slow(self) -> bool:
        """Whether there is a tier that has to be read from ahead."""
        return self._disk is not None

    def is_slow(self, checkpoint: Checkpoint) -> bool:
        """Whether the only copy is in a file that has to be read."""
        disk = self._disk
        return disk is not None and set(checkpoint.sizes) == {Tier.DISK} and disk.get_waiting(checkpoint) is None

    def start_fetch(self, checkpoint: Checkpoint, on_done: Callable[[], None]) -> Fetch:
        """Begin to read a checkpoint that `is_slow`. Where the file can't be used, `settle` drops the copy."""
        disk = self._disk
        assert disk is not None
        return self._fetches.begin(
            checkpoint, checkpoint.sizes[Tier.DISK], lambda: disk.start_read(checkpoint), on_done
        )

    def payload(self, checkpoint: Checkpoint, fetch: Fetch | None) -> Payload | None:
        """The copy of a checkpoint that is not in a quick tier, where it is in memory: fetched, or not written yet."""
        if self._disk is None or set(checkpoint.sizes) != {Tier.DISK}:
            return None
        fetched = None if fetch is None else fetch.payload_of(checkpoint)
        return fetched or self._disk.get_waiting(checkpoint)

    def logits(self, checkpoint: Checkpoint, fetched: Payload | None) -> F32 | None:
        """The last logits of a checkpoint; `fetched` is what `payload` gave for it."""
        if fetched is not None:
            return fetched.logits
        if self._device is not None and Tier.DEVICE in checkpoint.sizes:
            return self._device.logits(checkpoint)
        return self._host.get(checkpoint).logits

    def load(self, checkpoint: Checkpoint, slot: int, fetched: Payload | None) -> None:
        """Make the state of `checkpoint` live in `slot`, and promote it. `fetched` is what `payload` gave for it."""
        if self._device is not None and Tier.DEVICE in checkpoint.sizes:
            self._device.load(checkpoint, slot)
            return
        payload = self._host.get(checkpoint) if fetched is None else fetched
        self._live.write_state(slot, payload.expand())
        if not checkpoint.resumable:
            return  # dropped since it was fetched
        promoted = self._save_on_device(checkpoint, slot, payload.logits)
        if promoted is None and Tier.HOST not in checkpoint.sizes:
            promoted = self._put_on_host(checkpoint, payload)
        if promoted is not None:
            self._counters.promotions[promoted] += 1

    def touch(self, checkpoint: Checkpoint) -> None:
        """Value a checkpoint anew in every tier that has a copy."""
        for ledger in self.ledgers:
            if ledger.tier in checkpoint.sizes:
                ledger.touch(checkpoint)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Forget every copy. `on_lost` is not told."""
        for tier in (self._device, self._host, self._disk):
            if tier is not None and tier.ledger.tier in checkpoint.sizes:
                tier.drop(checkpoint)

    def settle(self) -> None:
        """Drop the copies whose files could not be written or read."""
        if self._disk is None:
            return
        for checkpoint, error in self._fetches.take_failed():
            _log.warning("a checkpoint is lost: %s", error)
            checkpoint.absence = MissReason.DAMAGED
            if Tier.DISK in checkpoint.sizes:
                self._lose(self._disk, checkpoint)
        for checkpoint in self._disk.take_failed():
            self._lose(self._disk, checkpoint)

    def flush(self) -> None:
        """Write the most valuable checkpoints that are not on disk yet, as many as fit there. Waits for the writer."""
        disk = self._disk
        if disk is None:
            return
        budget = disk.ledger.capacity
        resident = {checkpoint for ledger in self.ledgers for checkpoint in ledger}
        for checkpoint in sorted(resident, key=_value, reverse=True):
            if Tier.DISK in checkpoint.sizes:
                budget -= checkpoint.sizes[Tier.DISK]
                continue
            if not checkpoint.resumable:
                continue  # its only copy was on disk and has given way to a better one
            saved, size = disk.prepare(checkpoint, self._read(checkpoint))
            budget -= size
            if budget < 0 or not self._make_room(disk.ledger, size, self._evict_from_disk):
                return
            disk.put(checkpoint, saved, size, wait=True)

    def close(self) -> None:
        """Return when every file is written, then give the device's slabs back."""
        if self._disk is not None:
            self._disk.close()
        if self._device is not None:
            for checkpoint in list(self._device.ledger):
                self._device.drop(checkpoint)

    def _read(self, checkpoint: Checkpoint) -> Payload:
        if Tier.HOST in checkpoint.sizes or self._device is None:
            return self._host.get(checkpoint)
        return self._device.read(checkpoint)

    def _save_on_device(self, checkpoint: Checkpoint, slot: int, logits: F32 | None) -> Tier | None:
        device = self._device
        if device is None or not self._make_room(device.ledger, device.copy_bytes, self._evict_from_device):
            return None
        device.save(checkpoint, slot, logits)
        return Tier.DEVICE

    def _put_on_host_or_disk(self, checkpoint: Checkpoint, payload: Payload) -> Tier | None:
        return self._put_on_host(checkpoint, payload) or self._put_on_disk(checkpoint, payload)

    def _put_on_host(self, checkpoint: Checkpoint, payload: Payload) -> Tier | None:
        stored = payload.stored_as(self._host.precision)
        if not self._make_room(self._host.ledger, stored.num_bytes, self._evict_from_host):
            return None
        self._host.put(checkpoint, stored)
        return Tier.HOST

    def _put_on_disk(self, checkpoint: Checkpoint, payload: Payload) -> Tier | None:
        if self._disk is None:
            return None
        saved, size = self._disk.prepare(checkpoint, payload)
        if not self._make_room(self._disk.ledger, size, self._evict_from_disk):
            return None
        if not self._disk.put(checkpoint, saved, size):
            self._counters.writes_refused += 1
            return None
        return Tier.DISK

    def _make_room(self, ledger: EvictionQueue, size: int, evict: Callable[[Checkpoint], None]) -> bool:
        if size > ledger.capacity:
            return False
        while ledger.free < size:
            weakest = ledger.weakest()
            if weakest is None:
                return False
            self._counters.evictions[ledger.tier] += 1
            evict(weakest)
        return True

    def _evict_from_device(self, checkpoint: Checkpoint) -> None:
        assert self._device is not None
        to_disk = self._disk is not None and Tier.DISK not in checkpoint.sizes
        if Tier.HOST not in checkpoint.sizes and (self._host.ledger.capacity > 0 or to_disk):
            self._demote(checkpoint, self._device.read(checkpoint), self._put_on_host_or_new_on_disk)
        self._device.drop(checkpoint)
        self._tell_if_lost(checkpoint)

    def _evict_from_host(self, checkpoint: Checkpoint) -> None:
        if Tier.DISK not in checkpoint.sizes:
            self._demote(checkpoint, self._host.get(checkpoint), self._put_on_disk)
        self._host.drop(checkpoint)
        self._tell_if_lost(checkpoint)

    def _evict_from_disk(self, checkpoint: Checkpoint) -> None:
        assert self._disk is not None
        self._disk.drop(checkpoint)
        self._tell_if_lost(checkpoint)

    def _put_on_host_or_new_on_disk(self, checkpoint: Checkpoint, payload: Payload) -> Tier | None:
        tier = self._put_on_host(checkpoint, payload)
        return tier if tier is not None or Tier.DISK in checkpoint.sizes else self._put_on_disk(checkpoint, payload)

    def _demote(
        self, checkpoint: Checkpoint, payload: Payload, put: Callable[[Checkpoint, Payload], Tier | None]
    ) -> None:
        tier = put(checkpoint, payload)
        if tier is not None:
            self._counters.demotions[tier] += 1

    def _lose(self, disk: DiskTier, checkpoint: Checkpoint) -> None:
        self._counters.lost_files += 1
        disk.drop(checkpoint)
        self._tell_if_lost(checkpoint)

    def _tell_if_lost(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.resumable:
            self._on_lost(checkpoint)


def _value(checkpoint: Checkpoint) -> int:
    return (1 + checkpoint.hits) * checkpoint.saves
