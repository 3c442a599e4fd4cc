"""A state cache and a simple model of its contents, with checks of one against the other.

A path is a word of letters. A letter stands for 300 tokens, so that words span several blocks of the tree. The model
is a set of words. The evicted ones can't be predicted: they are read from the cache's own records, which must agree
with every answer of the cache.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

from rnn_engine.types import F32
from rnn_engine_states.cache.cache import Match, make_cache
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.cache.tiers.fetches import Fetch
from rnn_engine_states.tokens import pack
from tests.support.cache_books import check_books
from tests.support.toy_states import ToyDevice, look_up, same, toy_shape

LETTER_TOKENS = 300
SHAPE = toy_shape()


@cache
def tokens_of(word: str) -> list[int]:
    return [LETTER_TOKENS * ord(letter) + number for letter in word for number in range(LETTER_TOKENS)]


@cache
def packed_of(word: str) -> bytes:
    return pack(tokens_of(word))


@cache
def state_of(root: str, word: str) -> dict[str, F32]:
    """Return the state after a word: whole numbers that f16 holds, different for every word and root."""
    number = zlib.crc32(f"{root}:{word}".encode())
    return {
        name: ((np.arange(array.size, dtype=np.int64) * 37 + number) % 2039).astype(np.float32).reshape(array.shape)
        for name, array in SHAPE.initial_state().items()
    }


@cache
def logits_of(root: str, word: str) -> F32:
    number = zlib.crc32(f"{word}:{root}".encode())
    return np.arange(SHAPE.vocab_size, dtype=np.float32) + number % 1000


class CacheModel:
    """The operations on a cache, with checks of what must hold after each."""

    def __init__(
        self,
        folder: Path,
        *,
        slabs: int = 3,
        host_states: int = 4,
        disk_bytes: int = 9000,
        index_capacity: int | None = None,
    ) -> None:
        """With an `index_capacity`, the paths that the cache knows are read from its records, too."""
        self._folder = folder
        self._slabs = slabs
        disk = DiskConfig(folder, disk_bytes, background_bytes=0, write_after=0.0) if disk_bytes > 0 else None
        self._config = CacheConfig(host_capacity=host_states * 480, disk=disk, index_capacity=index_capacity)
        self.words: set[tuple[str, str]] = set()  # (root, word) of every path that the cache knows
        self.held: list[tuple[str, str, Match]] = []  # root, prompt and what was found
        self.fetches: list[Fetch] = []
        self.operations: Counter[str] = Counter()
        self._record_of: dict[tuple[str, str], Checkpoint] = {}  # the cache's records; they stay while it knows them
        self._open()

    def _open(self) -> None:
        self.device = ToyDevice(SHAPE, num_slots=2, num_slabs=self._slabs, slow_reads=True)
        self.cache = make_cache(SHAPE, "model", self.device, self._config, self.device)

    def arrive(self) -> None:
        """Let the states that are being read from the device arrive."""
        self.operations["arrive"] += 1
        self.device.arrive()

    def write_behind(self) -> None:
        """Write some of the states that only memory holds."""
        self.operations["write_behind"] += 1
        self.cache.write_behind()
        self._forget_trimmed()

    def insert(self, root: str, word: str, *, logits: bool) -> None:
        self.operations["insert"] += 1
        self.device.write_state(0, state_of(root, word))
        self._insert_slot(root, word, 0, logits=logits)

    def match(self, root: str, prompt: str) -> None:
        """Look up a prompt, and keep the match locked until `let_go` or `restore`."""
        self.operations["match"] += 1
        self.held.append((root, prompt, self._look_up(root, prompt)))

    def fetch(self, root: str, prompt: str) -> None:
        """Begin to read the state that a look-up would find, and hold it until `end_fetch`."""
        self.operations["fetch"] += 1
        ended = threading.Event()
        fetch = self.cache.prefetch(root, tokens_of(prompt), on_done=ended.set)
        if fetch is not None:
            assert fetch.done or ended.wait(timeout=60)
            self.fetches.append(fetch)

    def end_fetch(self, number: int) -> None:
        """Release a fetch that was begun."""
        self.operations["end_fetch"] += 1
        fetch = self.fetches.pop(number)
        assert not fetch.failed
        fetch.release()
        fetch.release()

    def let_go(self, number: int) -> None:
        """Release a match that was kept."""
        self.operations["let_go"] += 1
        _, _, match = self.held.pop(number)
        self.cache.release(match)
        self.cache.release(match)

    def restore(self, number: int) -> None:
        """Use a match that was kept."""
        self.operations["restore"] += 1
        root, prompt, match = self.held.pop(number)
        if match.checkpoint is not None:
            self.cache.restore(match, 1)
            self._expect_state(1, root, prompt[: match.saved // LETTER_TOKENS])
            self._forget_trimmed()

    def fork(self, root: str, prompt: str, tails: tuple[str, str]) -> None:
        """Look up a prompt, and go on from the match with two different tails."""
        self.operations["fork"] += 1
        matches = [self._look_up(root, prompt), self._look_up(root, prompt)]
        for slot, (match, tail) in enumerate(zip(matches, tails, strict=True)):
            start = prompt[: match.saved // LETTER_TOKENS]
            if match.checkpoint is not None:
                self.cache.restore(match, slot)
                self._expect_state(slot, root, start)
                self._forget_trimmed()
            self.device.write_state(slot, state_of(root, start + tail))
            self._insert_slot(root, start + tail, slot, logits=True)

    def drop_root(self, root: str) -> None:
        self.operations["drop_root"] += 1
        self._record_of = self._records()
        going = [key for key in self.words if key[0] == root and not self._record_of[key].locks]
        assert self.cache.drop_state(root) == len(going)
        for key in going:
            self.words.remove(key)
            self._record_of.pop(key, None)

    def restart(self) -> None:
        """Close the cache, and open it again on the same folder. It then has the states that the disk kept."""
        self.operations["restart"] += 1
        self._let_all_go()
        self.cache.close()
        assert self.device.slabs == {}
        self._open()
        kept = self._records()
        assert kept.keys() <= self.words
        self.words = set(kept)
        self._record_of = kept

    def end(self) -> None:
        """Release and drop everything, and check that nothing is left anywhere."""
        self._let_all_go()
        for root in {root for root, _ in self.words}:
            self.drop_root(root)
        stats = self.cache.stats()
        assert (stats.checkpoints, stats.ghosts, stats.device_logits_bytes) == (0, 0, 0)
        assert {tier.used for tier in stats.tiers} == {0}
        assert self.device.slabs == {}
        assert list(self._folder.iterdir()) == []

    def _let_all_go(self) -> None:
        while self.held:
            self.let_go(0)
        while self.fetches:
            self.end_fetch(0)

    def check(self) -> None:
        """Check that the records, the counters, the pool and the folder agree."""
        self.cache.peek("none", [0])  # stores the states that have arrived
        records = self._record_of = self._records()
        assert records.keys() == self.words
        for _, _, match in self.held:
            assert match.checkpoint is None or match.checkpoint.resumable
        matches = sum(match.checkpoint is not None for _, _, match in self.held)
        assert sum(record.locks for record in records.values()) == matches + len(self.fetches)
        self._check_books(list(records.values()))

    def _forget_trimmed(self) -> None:
        if self._config.index_capacity is not None:
            self.words = set(self._records())

    def _check_books(self, records: list[Checkpoint]) -> None:
        stats = self.cache.stats()
        assert stats.index_bytes <= stats.index_capacity
        check_books(records, stats)
        on_device = [record for record in records if "device" in record.sizes]
        assert len(self.device.slabs) == len(on_device) <= self._slabs
        logits_bytes = 4 * SHAPE.vocab_size
        assert stats.device_logits_bytes == logits_bytes * sum(record.has_logits for record in on_device)
        for record in records:
            assert record.sizes.get("host", 384 + logits_bytes * record.has_logits) == (
                384 + logits_bytes * record.has_logits
            )
        on_disk = sum(record.sizes.get("disk", 0) for record in records)
        if not self.device.reads:  # else some of it may be on its way there
            assert on_disk == sum(path.stat().st_size for path in self._folder.iterdir())

    def _look_up(self, root: str, prompt: str) -> Match:
        if self._record_of.keys() != self.words:
            self._record_of = self._records()
        words = [prompt[:length] for length in range(len(prompt), 0, -1)]
        serving = (word for word in words if _serves(self._record_of.get((root, word)), word == prompt))
        expected = next(serving, "")
        match = look_up(self.cache, tokens_of(prompt), root=root)
        assert match.saved == LETTER_TOKENS * len(expected)
        assert match.known == LETTER_TOKENS * max(
            (_shared(word, prompt) for known, word in self.words if known == root), default=0
        )
        assert (match.miss is None) == (match.saved > 0)
        if expected == prompt:
            assert match.logits is not None
            assert np.array_equal(match.logits, logits_of(root, prompt))
        else:
            assert match.logits is None
        return match

    def _insert_slot(self, root: str, word: str, slot: int, *, logits: bool) -> None:
        row = logits_of(root, word) if logits else None
        kind = CheckpointKind.PROMPT_END
        self.cache.insert(root, tokens_of(word), slot, kind=kind, logits=row)
        self.words.add((root, word))
        self._forget_trimmed()

    def _expect_state(self, slot: int, root: str, word: str) -> None:
        assert same(self.device.read_state(slot), state_of(root, word))

    def _records(self) -> dict[tuple[str, str], Checkpoint]:
        by_tokens = {packed_of(word): word for _, word in self.words}
        return {(record.root, by_tokens[record.known_place().tokens()]): record for record in self.cache.checkpoints()}


def _serves(record: Checkpoint | None, exact: bool) -> bool:
    return record is not None and record.resumable and (record.has_logits or not exact)


def _shared(first: str, second: str) -> int:
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


def run_random(model: CacheModel, seed: int, operations: int, check_every: int) -> None:
    """Run seeded random operations as in a service: mostly look-ups and inserts, now and then the others."""
    chance = random.Random(seed)
    for number in range(operations):
        _run_one(model, chance)
        if number % check_every == 0:
            model.check()
    model.check()


def _run_one(model: CacheModel, chance: random.Random) -> None:
    root = chance.choice(("none", "none", "none", "tuned"))
    word = _random_word(chance)
    kind = chance.choices(
        ("insert", "match", "finish", "fork", "arrive", "write_behind", "fetch", "end_fetch", "drop_root", "restart"),
        (30, 30, 30, 10, 20, 5, 5, 5, 0.2, 0.2),
    )[0]
    if kind == "insert":
        model.insert(root, word, logits=chance.random() < 0.8)
    elif kind == "match":
        model.match(root, word)
    elif kind == "finish":
        if model.held:
            finish = model.restore if chance.random() < 0.8 else model.let_go
            finish(chance.randrange(len(model.held)))
    elif kind == "fork":
        model.fork(root, word, (_random_word(chance), _random_word(chance)))
    elif kind == "arrive":
        model.arrive()
    elif kind == "write_behind":
        model.write_behind()
    elif kind == "fetch":
        model.fetch(root, word)
    elif kind == "end_fetch":
        if model.fetches:
            model.end_fetch(chance.randrange(len(model.fetches)))
    elif kind == "drop_root":
        model.drop_root(root)
    else:
        model.restart()
    while len(model.held) > 6:
        model.let_go(0)
    while len(model.fetches) > 2:
        model.end_fetch(0)


def _random_word(chance: random.Random) -> str:
    return "".join(chance.choices("abc", (6, 3, 1), k=chance.randint(1, 5)))
