"""A compiler of grammars that works on threads of its own, with a cache of compiled grammars for all requests.

There are two lanes, each with a thread and a process of its own. A grammar that takes long in the first lane moves on
to the second. So another grammar waits for a fraction of a second at most, plus the start of a process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, cast

from rnn_engine.errors import UnavailableError
from rnn_engine.grammar.compiled import CompiledGrammar, Vocabulary, compile_grammar, loosened
from rnn_engine.grammar.grammar import Grammar, GrammarError, GrammarKind, SlowGrammarError
from rnn_engine.grammar.trial import Trials

logger = logging.getLogger(__name__)

MOST_KEPT: Final = 256  # grammars
MOST_BYTES: Final = 512 * 2**20  # of memory that kept grammars may take
RETRY_SECONDS: Final = 5.0  # that a client should wait before it retries a grammar that could not be compiled
QUICK_SECONDS: Final = 0.25  # of processor time that a grammar may take in the first lane


@dataclass(slots=True, eq=False)
class _CompiledEntry:
    grammar: Grammar
    scope: str
    tried: Grammar  # `grammar`, or what it enforces without schemas if it takes too much
    left_out: Sequence[str] = ()  # parts of its schemas that are not enforced
    future: Future[CompiledGrammar] = field(default_factory=Future)
    memory_bytes: int = 0
    seconds: float = 0.0  # that compiling has taken
    is_counted: bool = False  # it is compiled, and its memory counts

    @property
    def owner(self) -> str:
        """The client whose share of the cache the entry counts towards: the part of `scope` before the first slash."""
        return self.scope.partition("/")[0]


class _Lane:
    """A thread that compiles grammars in turn, and a process that tries each for `seconds` of processor time."""

    def __init__(self, number: int, seconds: float) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"grammars {number}")
        self._seconds = seconds
        self._trials: Trials | None = None

    def trials(self, vocabulary: Vocabulary) -> Trials:
        """Return this lane's `Trials`, made at the first call. Only for its thread, and always one vocabulary."""
        if self._trials is None:
            self._trials = Trials(vocabulary, self._seconds)
        return self._trials

    def close(self) -> None:
        """Cancel the grammars that wait to be compiled, and block until the current one is done."""
        self.thread.shutdown(cancel_futures=True)
        if self._trials is not None:
            self._trials.close()


class GrammarCompiler:
    """Compiles grammars for one vocabulary in the background, and caches them. May be used on several threads."""

    def __init__(
        self,
        make_vocabulary: Callable[[], Vocabulary],
        seconds: float = 2.0,
        note_seconds: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Prepare to compile grammars. Each may take at most `seconds` of processor time.

        `make_vocabulary` is called on another thread when a vocabulary is first needed.
        `note_seconds` is called with the seconds that each grammar took, on any thread, but on one at a time.
        """
        self._make_vocabulary = make_vocabulary
        self._note_seconds = note_seconds
        limits = sorted({min(QUICK_SECONDS, seconds), seconds})
        self._lanes = [_Lane(number, limit) for number, limit in enumerate(limits)]
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, Grammar], _CompiledEntry] = OrderedDict()  # least recently used first
        self._kept_bytes = 0
        self._is_closed = False

    def compile(self, grammar: Grammar, scope: str = "") -> Future[CompiledGrammar]:
        """Return a future of the compiled `grammar`. It is compiled on another thread unless it is cached for `scope`.

        `scope` is `owner` or `owner/part`.
        The future raises GrammarError if the grammar is wrong or takes too much. It raises UnavailableError if trying
        it failed; the next call tries it again. Several callers may share the future. After `close`, the future of a
        grammar that is not cached is cancelled.
        """
        key = scope, grammar
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                entry = _CompiledEntry(grammar, scope, grammar)
                if self._is_closed:
                    entry.future.cancel()
                    return entry.future
                self._lanes[0].thread.submit(self._run, entry, self._lanes)
                self._kept[key] = entry
            self._kept.move_to_end(key)
        return entry.future

    def close(self) -> None:
        """Stop compiling and cancel the futures of waiting grammars. Blocks until the grammars in progress are done."""
        with self._lock:
            self._is_closed = True
        for lane in self._lanes:
            lane.close()
        with self._lock:
            futures = [entry.future for entry in self._kept.values()]
        for future in futures:
            future.cancel()

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._make_vocabulary()

    def _run(self, entry: _CompiledEntry, lanes: Sequence[_Lane]) -> None:
        """Compile a grammar on the thread of the first of `lanes`; if it takes too long, move it to the second one."""
        begun = time.monotonic()
        outcome: CompiledGrammar | Exception
        try:
            outcome = self._compile(entry, lanes[0].trials(self._vocabulary))
        except GrammarError as error:
            outcome = error
        except Exception as error:
            logger.exception("a grammar could not be compiled")
            outcome = UnavailableError(f"the grammar could not be compiled: {error}", RETRY_SECONDS)
        entry.seconds += time.monotonic() - begun
        if isinstance(outcome, SlowGrammarError) and len(lanes) > 1:
            with suppress(RuntimeError):  # it is closed
                lanes[1].thread.submit(self._run, entry, lanes[1:])
            return
        if isinstance(outcome, GrammarError) and outcome.fault is None and (looser := loosened(entry.tried)):
            entry.tried, entry.left_out = looser
            self._run(entry, lanes)
            return
        self._keep(entry, is_lasting=not isinstance(outcome, UnavailableError))
        with suppress(InvalidStateError):  # the future was cancelled
            if isinstance(outcome, Exception):
                entry.future.set_exception(outcome)
            else:
                entry.future.set_result(outcome)

    def _compile(self, entry: _CompiledEntry, trials: Trials) -> CompiledGrammar:
        grammar = entry.tried
        entry.memory_bytes = 2 * len(entry.grammar.text)
        if not self._vocabulary.has_text:
            raise GrammarError("the model has no tokenizer")
        verdict = trials.run(grammar)
        entry.memory_bytes += verdict.memory_bytes
        if verdict.fitted is not None:
            kind, text = verdict.fitted
            grammar = replace(grammar, kind=cast(GrammarKind, kind), text=text, strict=True)
        self._vocabulary.prepare(grammar.kind)
        compiled = compile_grammar(grammar, self._vocabulary)
        compiled.left_out = (*entry.left_out, *verdict.left_out)
        return compiled

    def _keep(self, done: _CompiledEntry, *, is_lasting: bool) -> None:
        """Count the new entry's memory and evict others beyond the limits; or remove it if not `is_lasting`."""
        with self._lock:
            self._note_seconds(done.seconds)
            if not is_lasting:
                del self._kept[done.scope, done.grammar]
                return
            done.is_counted = True
            self._kept_bytes += done.memory_bytes
            while len(self._kept) > MOST_KEPT or self._kept_bytes > MOST_BYTES:
                if (victim := self._find_victim(done)) is None:
                    return
                del self._kept[victim.scope, victim.grammar]
                self._kept_bytes -= victim.memory_bytes

    def _find_victim(self, done: _CompiledEntry) -> _CompiledEntry | None:
        """Return the least recently used entry, but not `done`, of the owner that uses the most; None without one."""
        shares: defaultdict[str, float] = defaultdict(float)
        for entry in self._kept.values():
            shares[entry.owner] += 1 / MOST_KEPT + entry.memory_bytes / MOST_BYTES
        droppable = [entry for entry in self._kept.values() if entry.is_counted and entry is not done]
        return max(droppable, key=lambda entry: shares[entry.owner], default=None)  # the first of equal ones
