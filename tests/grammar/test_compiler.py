"""Compiling off the caller's thread: each grammar once, also wrong ones, with bounds on time and memory."""

from __future__ import annotations

import errno
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from rnn_engine.errors import UnavailableError
from rnn_engine.grammar import Grammar, GrammarCompiler, GrammarError, Vocabulary, trial
from rnn_engine.grammar import compiler as compiling
from rnn_engine.grammar.compiled import CompiledGrammar
from rnn_engine.grammar.grammar import SlowGrammarError
from rnn_engine.grammar.trial import TrialError, Trials, Verdict
from tests.support.grammars import byte_vocabulary

TOO_DEEP = Grammar("lark", "start: a0\n" + "".join(f'a{n}: "x" a{n + 1}\n' for n in range(20_000)) + 'a20000: "y"')
TOO_MANY = Grammar("kbnf", "start ::= " + '"a"? ' * 40 + ";")
TOO_WIDE = Grammar("regex", "((a{300}){300}){300}")


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(byte_vocabulary, seconds=0.4)
    yield compiler
    compiler.close()


def error_of(compiler: GrammarCompiler, grammar: Grammar) -> str:
    error = compiler.compile(grammar).exception(timeout=30)
    assert isinstance(error, GrammarError)
    return str(error)


@pytest.mark.parametrize("grammar", [TOO_DEEP, TOO_MANY, TOO_WIDE], ids=["deep", "many", "wide"])
def test_a_grammar_that_takes_too_much_is_refused_and_others_are_compiled(
    compiler: GrammarCompiler, grammar: Grammar
) -> None:
    bad, good = compiler.compile(grammar), compiler.compile(Grammar("regex", f"a{grammar.kind}"))
    assert re.search("takes|is too large, or too deeply nested|followed", str(bad.exception(timeout=30)))
    assert good.result(timeout=30).start().next().any()


def test_a_grammar_whose_time_is_up_counts_as_slow_whatever_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiling process ends before the thread that killed it does."""
    kill, told = subprocess.Popen.kill, threading.Event()

    def kill_and_wait(process: subprocess.Popen[bytes]) -> None:
        kill(process)
        if threading.current_thread() is not threading.main_thread():
            told.wait()

    monkeypatch.setattr(subprocess.Popen, "kill", kill_and_wait)
    try:
        with pytest.raises(SlowGrammarError):
            Trials(byte_vocabulary(), seconds=0.0).run(TOO_MANY)
    finally:
        told.set()


def test_equal_grammars_are_compiled_once_and_wrong_ones_too(compiler: GrammarCompiler) -> None:
    for text in ("[0-9]+", "[0-9"):
        first = compiler.compile(Grammar("regex", text, "guided_regex"))
        assert compiler.compile(Grammar("regex", text, "pattern")) is first
    assert "unclosed" in error_of(compiler, Grammar("regex", "[0-9"))


def test_the_least_recently_used_give_way(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_KEPT", 2)
    a, b, c = (Grammar("regex", letter) for letter in "abc")
    first = {grammar: compiler.compile(grammar) for grammar in (a, b)}
    assert first[b].result(timeout=30)
    assert compiler.compile(a) is first[a]
    assert compiler.compile(c).result(timeout=30)
    assert compiler.compile(a) is first[a]
    assert compiler.compile(b) is not first[b]


def test_who_else_has_used_a_grammar_is_not_to_be_seen(compiler: GrammarCompiler) -> None:
    grammar = Grammar("regex", "who knows")
    first = compiler.compile(grammar, "ann")
    assert compiler.compile(grammar, "bob") is not first
    assert compiler.compile(grammar, "ann") is first


def test_one_owner_does_not_drive_out_the_grammars_of_another(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Grammar("regex", "quiet")
    kept = compiler.compile(quiet, "ann")
    assert kept.result(timeout=30)
    monkeypatch.setattr(compiling, "MOST_KEPT", 3)
    for number in range(5):
        assert compiler.compile(Grammar("regex", f"loud{number}"), f"bob/{number}").result(timeout=30)
    assert compiler.compile(quiet, "ann") is kept


def test_a_grammar_that_failed_for_a_passing_reason_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    compiler, grammar = GrammarCompiler(byte_vocabulary), Grammar("regex", "[a-z]")
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        error = compiler.compile(grammar).exception(timeout=30)
    assert isinstance(error, UnavailableError)
    assert "Too many open files" in str(error)
    assert compiler.compile(grammar).result(timeout=30).start().next().any()
    compiler.close()


def test_a_machine_that_is_too_busy_is_no_fault_of_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MOST_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(trial, "processor_seconds", lambda _: 0.0)
    trials = Trials(byte_vocabulary(), seconds=0.2)
    with pytest.raises(TrialError, match="busy"):
        trials.run(TOO_MANY)
    trials.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a script in place of Python")
def test_a_process_that_does_not_come_up_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 20\n")
    script.chmod(0o755)
    monkeypatch.setattr(trial, "START_SECONDS", 0.2)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(script))
        with pytest.raises(TrialError, match="did not start"):
            Trials(byte_vocabulary(), seconds=1.0).run(Grammar("regex", "a"))


def test_a_process_that_has_ended_between_two_grammars_is_started_again() -> None:
    trials, others = Trials(byte_vocabulary(), seconds=1.0), set(psutil.Process().children())
    trials.run(Grammar("regex", "a"))
    [child] = set(psutil.Process().children()) - others
    child.kill()
    child.wait()
    assert trials.run(Grammar("regex", "b")).error is None
    trials.close()


def test_a_model_without_a_tokenizer_has_no_grammars() -> None:
    compiler = GrammarCompiler(lambda: Vocabulary([b""] * 10))
    assert error_of(compiler, Grammar("regex", "a")) == "the model has no tokenizer"
    compiler.close()


def test_a_grammar_that_takes_long_goes_on_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_grammar, may_end = Grammar("regex", "slow"), threading.Event()

    class Lane:
        def __init__(self, vocabulary: Vocabulary, seconds: float) -> None:
            self._seconds = seconds

        def run(self, grammar: Grammar) -> Verdict:
            if grammar == slow_grammar and self._seconds == compiling.QUICK_SECONDS:
                raise SlowGrammarError("it takes long")
            if grammar == slow_grammar:
                assert may_end.wait(30)
            return Verdict(None)

        def close(self) -> None:
            """Do nothing, since this holds no resources."""

    monkeypatch.setattr(compiling, "Trials", Lane)
    seconds: list[float] = []
    compiler = GrammarCompiler(byte_vocabulary, note_seconds=seconds.append)
    slow, good = compiler.compile(slow_grammar), compiler.compile(Grammar("regex", "b"))
    assert good.result(timeout=30).start().next().any()
    assert not slow.done()
    may_end.set()
    assert slow.result(timeout=30).start().next().any()
    compiler.close()
    assert len(seconds) == 2


def test_what_waits_is_cancelled_at_the_end() -> None:
    compiler = GrammarCompiler(byte_vocabulary)
    futures = [compiler.compile(Grammar("regex", f"a{number}")) for number in range(20)]
    compiler.close()
    assert all(future.done() for future in futures)
    assert futures[-1].cancelled()


def test_after_the_end_only_what_is_cached_is_returned() -> None:
    compiler, known = GrammarCompiler(byte_vocabulary), Grammar("regex", "known")
    first = compiler.compile(known)
    assert first.result(timeout=30)
    compiler.close()
    compiler.close()
    assert compiler.compile(known) is first
    for _ in range(2):
        assert compiler.compile(Grammar("regex", "new")).cancelled()


def test_requests_that_come_while_it_closes_all_get_an_outcome() -> None:
    """Other threads add grammars while `close` runs."""
    compiler, may_end = GrammarCompiler(byte_vocabulary), threading.Event()
    futures: list[Future[CompiledGrammar]] = []

    def ask(name: int) -> None:
        for number in itertools.takewhile(lambda _: not may_end.is_set(), range(1000)):
            futures.append(compiler.compile(Grammar("regex", f"{name} {number}")))

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask, name) for name in range(4)]
        try:
            compiler.close()
        finally:
            may_end.set()
        assert [each.exception(timeout=30) for each in asking] == [None] * 4
    assert all(future.done() for future in futures)
