"""A process in which a grammar is tried before it is compiled in this one.

The libraries of grammars overflow the stack on some grammars and work for minutes on others, and neither can be
stopped inside a process. A grammar that ends the other process is refused.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

import psutil

from rnn_engine.grammar.compiled import check_start, compile_grammar
from rnn_engine.grammar.grammar import Grammar, GrammarError, SlowGrammarError
from rnn_engine.grammar.vocabulary import Vocabulary

MEMORY_BYTES: Final = 256 * 2**20  # that one compiled grammar may take
LOCKED_SECONDS: Final = 0.25  # for kbnf, which lets no other thread run meanwhile

_STACK_BYTES: Final = 2**20  # far less than the threads of this process have
_ADDRESS_BYTES: Final = 4 * 2**30  # of the other process, where the system has such a limit
_WALL_FACTOR: Final = 3  # seconds of the clock for each of the processor, as a machine may be busy


@dataclass(frozen=True, slots=True)
class Verdict:
    """What trying a grammar told."""

    error: str | None  # None where it can be compiled
    seconds: float = 0.0  # of the processor
    memory_bytes: int = 0


class Trials:
    """Tries grammars one after another, in a process that is started with the first one. For one thread."""

    def __init__(self, vocabulary: Vocabulary, seconds: float) -> None:
        """`seconds` of the processor's time is the most for one grammar."""
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, grammar: Grammar) -> Verdict:
        """Compile `grammar` in the other process.

        Raises GrammarError where it is wrong, or takes too much; SlowGrammarError where that is time.
        """
        verdict = self._ask(self._process or self._start(), grammar)
        seconds = min(self._seconds, LOCKED_SECONDS) if grammar.kind == "kbnf" else self._seconds
        if verdict.error is not None:
            raise GrammarError(verdict.error)
        if verdict.seconds > seconds:
            raise SlowGrammarError(f"it takes {verdict.seconds:.2g} s to compile, and {seconds:g} s are allowed")
        if verdict.memory_bytes > MEMORY_BYTES:
            raise GrammarError(f"it takes {verdict.memory_bytes} bytes, and {MEMORY_BYTES} are allowed")
        return verdict

    def close(self) -> None:
        """End the process, if there is one; the next grammar starts another. May be called on any thread."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    _open(stream).close()

    def _ask(self, process: subprocess.Popen[bytes], grammar: Grammar) -> Verdict:
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(_WALL_FACTOR * self._seconds, give_up)
        timer.start()
        try:
            pickle.dump(grammar, _open(process.stdin))
            _open(process.stdin).flush()
            answer = _open(process.stdout).readline()
        except OSError:
            answer = b""
        finally:
            timer.cancel()
        if answer:
            return Verdict(**json.loads(answer))
        self.close()
        if late.is_set():
            raise SlowGrammarError(f"compiling it takes more than {self._seconds:g} s")
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
        pickle.dump(self._vocabulary.pieces, _open(process.stdin))
        _open(process.stdin).flush()
        _open(process.stdout).readline()  # it is ready, so that starting does not count
        return process


def main() -> None:
    """Try the grammars that come on the standard input, until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing that a library prints may come between the answers
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
        check_start(compile_grammar(grammar, vocabulary), vocabulary.size)
    except GrammarError as error:
        return Verdict(str(error))
    return Verdict(None, time.process_time() - begun, max(process.memory_info().rss - bytes_before, 0))


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
