"""Compile grammars on a thread, each once, and keep them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from rnn_engine.grammar.compiled import CompiledGrammar, compile_grammar
from rnn_engine.grammar.grammar import Grammar, GrammarError
from rnn_engine.grammar.trial import Trials
from rnn_engine.grammar.vocabulary import Vocabulary

MOST_KEPT: Final = 256  # grammars
MOST_BYTES: Final = 512 * 2**20  # of memory that kept grammars take


@dataclass(slots=True, eq=False)
class _Entry:
    future: Future[CompiledGrammar]
    memory_bytes: int = 0


class GrammarCompiler:
    """The compiled grammars of one vocabulary. May be used on several threads."""

    def __init__(
        self,
        make_vocabulary: Callable[[], Vocabulary],
        seconds: float = 2.0,
        note_seconds: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`seconds` of the processor's time is the most for one grammar.

        `make_vocabulary` is called on another thread when it is first needed. `note_seconds` is told on that thread how
        long each grammar took.
        """
        self._make_vocabulary = make_vocabulary
        self._seconds = seconds
        self._note_seconds = note_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, _Entry] = OrderedDict()  # least recently used first
        self._kept_bytes = 0

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Have `grammar` compiled, unless it is kept. Does not block.

        The future raises GrammarError for one that is wrong or takes too much. Several callers may share it.
        """
        with self._lock:
            entry = self._kept.get(grammar)
            if entry is None:
                entry = self._kept[grammar] = _Entry(self._thread.submit(self._compile, grammar))
            self._kept.move_to_end(grammar)
        return entry.future

    def close(self) -> None:
        """Compile nothing more; futures whose turn has not come are cancelled. Blocks until the last one is done."""
        self._thread.shutdown(cancel_futures=True)
        if "_trials" in self.__dict__:
            self._trials.close()

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._make_vocabulary()

    @cached_property
    def _trials(self) -> Trials:
        return Trials(self._vocabulary, self._seconds)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        begun, memory_bytes = time.monotonic(), 2 * len(grammar.text)
        try:
            if not self._vocabulary.has_text:
                raise GrammarError("the model has no tokenizer")
            memory_bytes += self._trials.run(grammar).memory_bytes
            self._vocabulary.prepare(grammar.kind)
            return compile_grammar(grammar, self._vocabulary)
        finally:
            self._note_seconds(time.monotonic() - begun)
            self._keep(grammar, memory_bytes)

    def _keep(self, grammar: Grammar, memory_bytes: int) -> None:
        """Count what `grammar` takes, and drop what was not used for longest where all take too much."""
        with self._lock:
            self._kept[grammar].memory_bytes = memory_bytes
            self._kept_bytes += memory_bytes
            for old, entry in list(self._kept.items()):
                if len(self._kept) <= MOST_KEPT and self._kept_bytes <= MOST_BYTES:
                    break
                if entry.future.done():
                    del self._kept[old]
                    self._kept_bytes -= entry.memory_bytes
