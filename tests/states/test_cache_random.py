"""The cache under random operations, compared with a model of its contents."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.cache_model import CacheModel, run_random

ROOTS = st.sampled_from(["none", "tuned"])
WORDS = st.text("abc", min_size=1, max_size=5)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="states-"))
        self.model = CacheModel(self.folder)

    @rule(root=ROOTS, word=WORDS, logits=st.booleans())
    def insert(self, root: str, word: str, logits: bool) -> None:
        self.model.insert(root, word, logits=logits)

    @rule()
    def arrive(self) -> None:
        self.model.arrive()

    @rule()
    def write_behind(self) -> None:
        self.model.write_behind()

    @rule(root=ROOTS, prompt=WORDS)
    def match(self, root: str, prompt: str) -> None:
        self.model.match(root, prompt)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.model.let_go(self._held(data))

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.model.restore(self._held(data))

    @rule(root=ROOTS, prompt=WORDS)
    def fetch(self, root: str, prompt: str) -> None:
        self.model.fetch(root, prompt)

    @precondition(lambda self: self.model.fetches)
    @rule()
    def end_fetch(self) -> None:
        self.model.end_fetch(0)

    @rule(root=ROOTS, prompt=WORDS, tails=st.tuples(WORDS, WORDS))
    def fork(self, root: str, prompt: str, tails: tuple[str, str]) -> None:
        self.model.fork(root, prompt, tails)

    @rule(root=ROOTS)
    def drop_root(self, root: str) -> None:
        self.model.drop_root(root)

    @rule()
    def restart(self) -> None:
        self.model.restart()

    @invariant()
    def agrees(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        self.model.end()
        shutil.rmtree(self.folder)

    def _held(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.model.held) - 1))


TestMachine: Any = Machine.TestCase
TestMachine.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)


def test_a_long_seeded_run_without_a_disk(tmp_path: Path) -> None:
    model = CacheModel(tmp_path, disk_bytes=0)
    run_random(model, seed=4, operations=4000, check_every=100)
    model.end()
    expected = {
        "insert",
        "match",
        "let_go",
        "restore",
        "fork",
        "arrive",
        "write_behind",
        "fetch",
        "drop_root",
        "restart",
    }
    assert set(model.operations) == expected  # without a disk nothing is fetched, so no fetch ends
