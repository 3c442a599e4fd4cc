"""Choose the replica for a request: the one that has most of its prompt cached, unless it has too many requests.

There are two sources for what a replica has cached. A front remembers the prompts that it sent as hashes of their
blocks, so it knows at once when prompts that begin alike arrive together. And replicas send summaries of their caches:
they show prompts that came by other fronts, and states that were evicted. This module knows neither Ray nor engines.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rnn_engine_states.cache.browse import BLOCK_TOKENS, SummaryChanges, block_digests, path_digest, unpack_marks
from rnn_engine_states.tokens import TOKEN_BYTES, pack

MOST_BLOCKS = 1 << 16  # remembered for each replica: the prompts of the last four million tokens

# How long each request that a replica already has delays a new one: as long as this many prompt tokens take.
RUNNING_TOKENS = 8  # a running request shares the steps
QUEUED_TOKENS = 32  # a queued request has to end first


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may be chosen for a request: its name, its slots, and its number of requests of this process."""

    name: str
    num_slots: int
    outstanding: int  # requests of this front at the replica, running or queued


class PrefixRouter:
    """Chooses a replica for each request by the prompt prefixes that the replicas have probably cached."""

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        """Create a router that remembers at most `most_blocks` blocks of the prompts that were sent to each replica."""
        self._most = most_blocks
        self._replicas: dict[str, _Kept] = {}
        self._holders: _Holders = defaultdict(set)

    def choose(self, candidates: Sequence[Candidate], root: str, prompt: Sequence[int]) -> Candidate:
        """Return the candidate replica that is likely to run `prompt` first, and remember that it gets the prompt.

        Of equal candidates, the one with the fewest requests for each slot is chosen, and then the one with the fewest
        remembered blocks. `root` distinguishes prompts that start from other states, or whose cache is not shared.
        """
        packed = pack(prompt)
        blocks = block_digests(root, packed)
        saved = self._saved_tokens(blocks, packed)

        def cost(candidate: Candidate) -> tuple[int, float, int]:
            queued = max(candidate.outstanding + 1 - candidate.num_slots, 0)
            running = candidate.outstanding - max(queued - 1, 0)
            tokens = running * RUNNING_TOKENS + queued * QUEUED_TOKENS - saved.get(candidate.name, 0)
            kept = self._replicas.get(candidate.name)
            return tokens, candidate.outstanding / candidate.num_slots, 0 if kept is None else kept.num_sent

        chosen = min(candidates, key=cost)
        self._replica(chosen.name).note_sent(blocks, self._most)
        return chosen

    def note(self, replica: str, changes: SummaryChanges) -> None:
        """Update the prefixes that a replica has by the changes of its cache's summary since `versions`."""
        self._replica(replica).note(changes)

    def versions(self) -> Mapping[str, int]:
        """Return the version of each replica's cache summary that is known here, without replicas that have none."""
        return {name: kept.version for name, kept in self._replicas.items() if kept.version is not None}

    def forget(self, replica: str) -> None:
        if (kept := self._replicas.pop(replica, None)) is not None:
            kept.clear()

    def _replica(self, name: str) -> _Kept:
        kept = self._replicas.get(name)
        if kept is None:
            kept = self._replicas[name] = _Kept(name, self._holders)
        return kept

    def _saved_tokens(self, blocks: Sequence[bytes], packed: bytes) -> Mapping[str, int]:
        """Return how many tokens of a prompt, by its blocks' hashes, each replica has probably cached, if any."""
        saved: dict[str, int] = {}
        for number in range(len(blocks), 0, -1):
            for name in self._holders.get(blocks[number - 1], ()):
                if name not in saved and (tokens := self._replicas[name].tokens_of(blocks[number - 1], number, packed)):
                    saved[name] = tokens
        return saved


_Holders: TypeAlias = defaultdict[bytes, set[str]]
"""Hash of a prompt's first whole blocks -> the replicas that probably have them cached.

A replica may instead have a checkpoint in the block after them.
"""


class _Kept:
    """The prompt prefixes that one replica probably has cached: sent to it in prompts, or listed in its summary."""

    def __init__(self, name: str, holders: _Holders) -> None:
        """Create an empty record. `holders` maps each prefix's hash to the replicas that have it, and is updated."""
        self.version: int | None = None  # of its summary
        self._name = name
        self._holders = holders
        self._marks: defaultdict[bytes, dict[bytes, int]] = defaultdict(dict)  # whole blocks -> path -> length
        self._sent: OrderedDict[bytes, _Sent] = OrderedDict()  # beginnings of prompts, the last used one last
        self._longer: Counter[bytes] = Counter()  # beginning -> how many in `_sent` are one block longer
        self._notes = 0

    @property
    def num_sent(self) -> int:
        return len(self._sent)

    def tokens_of(self, block: bytes, number: int, packed: bytes) -> int:
        """Return how many tokens of a prompt the replica has probably cached, given the longest prefix that it knows.

        The prefix has the hash `block` and `number` whole blocks; `packed` is the whole prompt. The result is the
        prefix's length if it was sent to the replica, or the length of a checkpoint in the block after it, or 0.
        """
        longest = max(self._lengths(block, number, packed), default=0)
        return max(longest, number * BLOCK_TOKENS) if block in self._sent else longest

    def clear(self) -> None:
        """Remove the replica from `holders`, the shared map from each prefix to the replicas that have it."""
        for block in {*self._sent, *self._marks}:
            self._leave(block)

    def note_sent(self, blocks: Iterable[bytes], most: int) -> None:
        """Remember at most `most` hashes of the prefixes of a prompt that is sent to the replica."""
        shorter = None
        for block in blocks:
            if block not in self._sent and shorter is not None:
                self._longer[shorter] += 1
            self._sent[block] = _Sent(shorter, self._notes)
            self._holders[block].add(self._name)
            self._sent.move_to_end(block)
            shorter = block
        while len(self._sent) > most:
            self._remove(next(iter(self._sent)))

    def note(self, changes: SummaryChanges) -> None:
        """Update the replica's cached prompt prefixes from its cache's summary, or from the summary's changes."""
        lost = {(mark.blocks, mark.path) for mark in unpack_marks(changes.lost)}
        if changes.whole:
            lost = {(blocks, path) for blocks, paths in self._marks.items() for path in paths}
            self._marks.clear()
        for mark in unpack_marks(changes.kept):
            self._marks[mark.blocks][mark.path] = mark.length
            self._holders[mark.blocks].add(self._name)
        for blocks, path in lost:
            if not changes.whole:
                self._marks[blocks].pop(path, None)
            if not self._marks[blocks]:
                del self._marks[blocks]
                self._prune(blocks)
                if blocks not in self._sent:
                    self._leave(blocks)
        self.version = changes.version
        self._notes += 1

    def _lengths(self, block: bytes, number: int, packed: bytes) -> Iterable[int]:
        """Yield the lengths of cached states that extend the prefix with the hash `block` by part of a block."""
        start = number * BLOCK_TOKENS * TOKEN_BYTES
        for path, length in self._marks.get(block, {}).items():
            if path_digest(block, packed[start : length * TOKEN_BYTES]) == path and length * TOKEN_BYTES <= len(packed):
                yield length

    def _prune(self, block: bytes | None) -> None:
        """Forget a sent prefix that is not cached, and then shorter ones that no longer one needs."""
        while block is not None and not self._longer[block] and block not in self._marks:
            sent = self._sent.get(block)
            if sent is None or sent.notes >= self._notes - 1:  # the last summary may not cover it
                return
            self._remove(block)
            block = sent.shorter

    def _remove(self, block: bytes) -> None:
        sent = self._sent.pop(block)
        if block not in self._marks:
            self._leave(block)
        if sent.shorter is not None:
            self._longer[sent.shorter] -= 1
            if not self._longer[sent.shorter]:
                del self._longer[sent.shorter]

    def _leave(self, block: bytes) -> None:
        holders = self._holders[block]
        holders.discard(self._name)
        if not holders:
            del self._holders[block]


@dataclass(slots=True)
class _Sent:
    """A prompt prefix that was sent to a replica: when it was last sent, and the prefix that is one block shorter."""

    shorter: bytes | None  # the beginning that is one block shorter
    notes: int  # how many summaries had come when it was last sent
