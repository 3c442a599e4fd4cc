"""Trial compilations of grammars in a child process, so that a crash or a hang does not affect this process.

The grammar libraries overflow the stack on some grammars and work for minutes on others. Neither can be stopped inside
a process. A grammar that ends the child process is refused.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

import psutil

from rnn_engine.grammar.compiled import Vocabulary, check_start, compile_grammar, fit_grammar
from rnn_engine.grammar.grammar import Fault, Grammar, GrammarError, SlowGrammarError

MEMORY_BYTES: Final = 256 * 2**20  # that one compiled grammar may take
LOCKED_SECONDS: Final = 0.25  # of processor time for a grammar of kbnf, which lets no other thread run meanwhile

_STACK_BYTES: Final = 2**20  # far less than the threads of this process have
_ADDRESS_BYTES: Final = 4 * 2**30  # of the other process, if the system has such a limit
MOST_WAIT_SECONDS: Final = 60.0  # by the clock, for a grammar whose process gets too little of the processor
START_SECONDS: Final = 60.0  # by the clock, for a process to start
_LOOK_SECONDS: Final = 0.05  # between two checks of the processor time that a grammar has taken


class TrialError(Exception):
    """A grammar could not be compiled on trial, for a temporary reason that does not depend on the grammar."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of compiling a grammar on trial: the error, or the time and memory that it took."""

    error: str | None  # None if it can be compiled
    seconds: float = 0.0  # of processor time
    memory_bytes: int = 0
    fitted: Sequence[str] | None = None  # kind and text of the grammar to use in its place
    left_out: Sequence[str] = ()  # see `fit_grammar`
    fault: Mapping[str, Any] | None = None  # of the error


class Trials:
    """Compiles grammars on trial, one after another, in a child process of its own. Not thread-safe."""

    def __init__(self, vocabulary: Vocabulary, seconds: float) -> None:
        """Prepare to try grammars for `vocabulary`. Each may take at most `seconds` of processor time."""
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, grammar: Grammar) -> Verdict:
        """Compile `grammar` on trial in the child process, and return the verdict: its time and memory.

        Raises GrammarError if the grammar is wrong or takes too much memory, and SlowGrammarError if it takes too much
        time. Raises TrialError or OSError if it could not be tried.
        """
        if self._process is not None and self._process.poll() is not None:  # it has ended since the last grammar
            self.close()
        verdict = self._ask(self._process or self._start(), grammar)
        seconds = min(self._seconds, LOCKED_SECONDS) if grammar.kind == "kbnf" else self._seconds
        if verdict.error is not None:
            raise GrammarError(verdict.error, None if verdict.fault is None else Fault(**verdict.fault))
        if verdict.seconds > seconds:
            raise SlowGrammarError(f"it takes {verdict.seconds:.2g} s to compile; at most {seconds:g} s are allowed")
        if verdict.memory_bytes > MEMORY_BYTES:
            raise GrammarError(f"it takes {verdict.memory_bytes} bytes of memory; at most {MEMORY_BYTES} are allowed")
        return verdict

    def close(self) -> None:
        """Kill the child process, if there is one; the next trial starts another. May be called on any thread."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    _open(stream).close()

    def _ask(self, process: subprocess.Popen[bytes], grammar: Grammar) -> Verdict:
        used = processor_seconds(process.pid)
        with _Watch(
            process, MOST_WAIT_SECONDS, lambda: processor_seconds(process.pid) - used >= self._seconds
        ) as watch:
            answer = _exchange(process, grammar)
        if answer:
            return Verdict(**json.loads(answer))
        self.close()
        if watch.is_over:
            raise SlowGrammarError(f"compiling it takes more than {self._seconds:g} s")
        if watch.is_late:
            raise TrialError(f"the machine is too busy: the grammar was not compiled within {MOST_WAIT_SECONDS:g} s")
        raise GrammarError("it is too large, or too deeply nested")

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        with _Watch(process, START_SECONDS, lambda: False):
            is_ready = _exchange(process, self._vocabulary.pieces)  # now, so that starting does not count as trying
        if not is_ready:
            self.close()
            raise TrialError(f"the process that compiles grammars on trial did not start within {START_SECONDS:g} s")
        return process


class _Watch:
    """A context manager that kills a child process if it takes too long, while the block waits for its answer."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float, takes_too_much: Callable[[], bool]) -> None:
        """Kill `process` after `seconds` by the clock, or when `takes_too_much` returns True.

        `takes_too_much` is called at intervals, on another thread.
        """
        self.is_over = False  # `takes_too_much` has returned True
        self.is_late = False  # `seconds` have passed
        self._process = process
        self._end = time.monotonic() + seconds
        self._takes_too_much = takes_too_much
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trial of a grammar", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            self.is_over = self._takes_too_much()
            self.is_late = time.monotonic() >= self._end
            if self.is_over or self.is_late:
                self._process.kill()
                return


def processor_seconds(pid: int) -> float:
    """Return the seconds of processor time that the process `pid` has used; 0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _exchange(process: subprocess.Popen[bytes], question: object) -> bytes:
    """Send `question` to a child process and return the line that it answers; empty if the process has ended."""
    try:
        pickle.dump(question, _open(process.stdin))
        _open(process.stdin).flush()
        return _open(process.stdout).readline()
    except OSError:
        return b""


def main() -> None:
    """Run the child process: compile each grammar that comes on standard input, and print a line with the verdict."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # so that output of a library does not mix with the answers
    _limit_memory()
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_try_all, args=(sys.stdin.buffer, answers))
    thread.start()
    thread.join()


def _try_all(requests: IO[bytes], answers: IO[str]) -> None:
    vocabulary = Vocabulary(pickle.load(requests))
    vocabulary.prepare("lark")
    print("ready", file=answers)
    while True:
        try:
            grammar = pickle.load(requests)
        except EOFError:
            return
        vocabulary.prepare(grammar.kind)
        print(json.dumps(asdict(_try(grammar, vocabulary))), file=answers)


def _try(grammar: Grammar, vocabulary: Vocabulary) -> Verdict:
    process = psutil.Process()
    begun, bytes_before = time.process_time(), process.memory_info().rss
    try:
        fitted, left_out = fit_grammar(grammar)
        check_start(compile_grammar(fitted, vocabulary), vocabulary.size)
    except GrammarError as error:
        return Verdict(str(error), fault=None if error.fault is None else asdict(error.fault))
    num_bytes = max(process.memory_info().rss - bytes_before, 0)
    found = None if fitted is grammar else (fitted.kind, fitted.text)
    return Verdict(None, time.process_time() - begun, num_bytes, found, left_out)


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "the process was started with pipes"
    return stream


if __name__ == "__main__":
    main()
