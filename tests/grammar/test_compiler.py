"""Compiling off the caller's thread: each grammar once, wrong ones too, and none that takes too much."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator

import pytest

from rnn_engine.grammar import Grammar, GrammarCompiler, GrammarError, Vocabulary
from rnn_engine.grammar import compiler as compiling
from rnn_engine.grammar.grammar import SlowGrammarError
from rnn_engine.grammar.trial import Trials, Verdict
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
    """The process is gone before the thread that ended it is."""
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
            """Hold nothing."""

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
