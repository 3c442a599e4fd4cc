"""`rnn-engine chat` in a terminal, and its commands."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rnn_engine.cli import main
from rnn_engine.cli.chat.terminal import MarkdownBlocks, MarkdownScreen
from rnn_engine.cli.session import EngineChoice
from rnn_engine.requests import GenerateRequest
from tests.support.cli import Command
from tests.support.fake_engine import FakeEngine
from tests.support.terminal import ALT_ENTER, BACKSPACE, CTRL_C, CTRL_D, LEFT, UP, open_terminal

Install = Callable[[FakeEngine], list[EngineChoice]]


def prompts(engine: FakeEngine) -> list[str]:
    return [engine.detokenize(request.prompt).decode() for request in engine.requests]


def test_a_conversation_in_a_terminal(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    chat = ("chat", "--device", "cpu", "--temperature", 0)
    state = tmp_path / "paris.st"
    with open_terminal(*chat, environment=environment) as terminal:
        terminal.wait_for_prompt()
        terminal.type(f"What is the capital of Frence?{4 * LEFT}{BACKSPACE}a\r")
        terminal.wait_for("The capital of France is Paris.")
        terminal.wait_for_prompt()
        terminal.type(f"How much is{ALT_ENTER}12 + 30?")
        terminal.wait_for("      12 + 30?")
        terminal.type(CTRL_C)
        terminal.wait_for_prompt()
        terminal.type("/fork here\r")
        terminal.wait_for("put aside; /go here continues from here")
        terminal.wait_for_prompt()
        terminal.type("/state pi\t")
        terminal.wait_for("User: /state pirate")
        terminal.type("\r/retry\r")
        terminal.wait_for("Arr!")
        terminal.wait_for_prompt()
        terminal.type(f"/save {state}\r")
        terminal.wait_for("continues from it")
        terminal.wait_for_prompt()
        terminal.type("/he\t")
        terminal.wait_for("User: /help")
        terminal.type("\r")
        terminal.wait_for("Alt+Enter begins a new line")
        terminal.wait_for_prompt()
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
    assert state.stat().st_size > 0
    with open_terminal(*chat, environment=environment) as terminal:
        terminal.wait_for_prompt()
        terminal.type(6 * UP)  # the line typed in the previous run
        terminal.wait_for("User: What is the capital of France?")
        terminal.type(CTRL_C)
        terminal.wait_for_prompt()
        terminal.type(f"/load {state}\r")
        terminal.wait_for("called paris")
        terminal.wait_for_prompt()
        terminal.type("/quit\r")
        assert terminal.wait_for_end() == 0


def test_a_paste_during_an_answer_waits_as_one_message(tmp_path: Path) -> None:
    said = tmp_path / "prompts"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PROMPTS": str(said)}
    with open_terminal("chat", environment=environment, module="tests.support.fake_chat") as terminal:
        terminal.wait_for_prompt()
        terminal.type("Held\r")
        terminal.wait_for("Yes")
        terminal.paste("First line\nsecond line")
        terminal.type(CTRL_C)
        terminal.wait_for("      second line")
        assert len(said.read_text().splitlines()) == 1
        assert terminal.lines[-4:] == ["Yes", "(ended)", "User: First line", "      second line"]
        terminal.type("\r")
        terminal.wait_for("Yes it is.")
        terminal.wait_for_prompt()
        terminal.type("/quit\r")
        assert terminal.wait_for_end() == 0
    assert json.loads(said.read_text().splitlines()[1]).endswith("User: First line\nsecond line\n\nAssistant:")
    with open_terminal("generate", environment=environment) as terminal:
        terminal.wait_for("give PROMPT or --tokens")
        assert terminal.wait_for_end() == 2


def test_commands(rnn_engine: Command, install: Install) -> None:
    engine = FakeEngine(reply=lambda request: f" {len(request.prompt)}")
    install(engine)
    said = rnn_engine(
        "chat", "m", stdin="/stats\nOne\n/fork a\nTwo\n/undo\nThree\n/go a\n/retry\n/system Count.\nFour\n/go\n/stats\n"
    )
    first, second, third, again, fourth = prompts(engine)
    assert first == again == "User: One\n\nAssistant:"
    assert second.startswith(first)
    assert second.endswith("User: Two\n\nAssistant:")
    assert third == second.replace("Two", "Three")
    assert fourth == "System: Count.\n\nUser: Four\n\nAssistant:"
    for words in (
        "no answer yet",
        "taken back: Two",
        "back at a; last message:",
        "put aside: a\n",
        "were in the cache",
    ):
        assert words in said


def test_a_copy_has_its_system_text(rnn_engine: Command, install: Install) -> None:
    engine = FakeEngine()
    install(engine)
    lines = (
        "/fork plain",
        "/system Count.",
        "/fork counting",
        "/go plain",
        "/new",
        "One",
        "/go counting",
        "/new",
        "Two",
    )
    rnn_engine("chat", "m", stdin="".join(f"{line}\n" for line in lines))
    assert prompts(engine) == ["User: One\n\nAssistant:", "System: Count.\n\nUser: Two\n\nAssistant:"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/nothing", "unknown command /nothing; /help lists the commands"),
        ("/hlep", "unknown command /hlep; did you mean /help?"),
        ("/undo", "nothing was said yet"),
        ("/retry", "nothing was said yet"),
        ("/save x.st", "nothing was said yet"),
        ("/save pyproject.toml", "pyproject.toml exists already; choose another name"),
        ("/load nowhere.st", "nowhere.st"),
        ("/fork", "/fork needs an argument: NAME"),
        ("/go away", "unknown copy 'away'; /fork NAME makes one"),
        ("/new now", "/new takes no argument"),
        ("/sampling heat=1", "unknown sampling parameter 'heat'; there are: temperature, "),
        ("/sampling temprature=1", "unknown sampling parameter 'temprature'; did you mean 'temperature'?"),
        ("/sampling temperature=hot", "expected a number"),
        ("/sampling temperature=-1", "temperature: -1.0 is not allowed"),
    ],
)
def test_a_command_that_can_not_be_followed(rnn_engine: Command, install: Install, line: str, words: str) -> None:
    engine = FakeEngine()
    install(engine)
    said = rnn_engine("chat", "m", stdin=f"{line}\nOne\n")
    assert words in said
    assert prompts(engine) == ["User: One\n\nAssistant:"]


def test_sampling_is_changed_for_what_comes_then(rnn_engine: Command, install: Install) -> None:
    engine = FakeEngine()
    install(engine)
    said = rnn_engine("chat", "m", stdin="One\n/sampling temperature=0.25 top_k=3\nTwo\n")
    assert "temperature=0.25\n" in said
    assert [(each.sampling.temperature, each.sampling.top_k) for each in engine.requests] == [(1.0, 128), (0.25, 3)]


def test_ctrl_c_ends_an_answer_in_markdown(
    rnn_engine: Command, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply(_: GenerateRequest) -> str:
        if len(engine.requests) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return " **Yes**"

    engine = FakeEngine(reply=reply)
    install(engine)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    monkeypatch.setattr("rnn_engine.cli.chat.terminal.Console", lambda **_: console)
    rnn_engine("chat", "m", stdin="One\nTwo\n")
    assert "(ended)" in out.getvalue()
    assert "\x1b[1mYes\x1b[0m" in out.getvalue()
    assert prompts(engine)[1] == "User: One\n\nUser: Two\n\nAssistant:"


def test_a_failure_of_the_engine_leaves_the_conversation_going(rnn_engine: Command, install: Install) -> None:
    engine = FakeEngine(fail_at=0)

    def reply(_: GenerateRequest) -> str:
        engine.fail_at = {1: 0, 2: None, 3: 2, 4: None}[len(engine.requests)]
        return " Yes"

    engine.reply = reply
    install(engine)
    said = rnn_engine("chat", "m", stdin="One\n/retry\nTwo\n/retry\n/stats\n")
    assert said.startswith("the device was lost\nYes\nY\nthe device was lost\nYes\n")
    first, second = "User: One\n\nAssistant:", "User: One\n\nAssistant: Yes\n\nUser: Two\n\nAssistant:"
    assert prompts(engine) == [first, first, second, second]


def test_only_answers_are_on_standard_output(install: Install) -> None:
    install(FakeEngine(reply=lambda request: f" {len(request.prompt)}"))
    result = CliRunner().invoke(main, ["chat", "m"], input="One\n/stats\n/nothing\n\nTwo\n/undo\n")
    assert result.exit_code == 0
    assert result.stdout == "21\n47\n"
    assert "were in the cache" in result.stderr
    assert "unknown command /nothing" in result.stderr


def test_a_message_that_was_not_answered_may_be_taken_back(rnn_engine: Command, install: Install) -> None:
    engine = FakeEngine(fail_at=0)
    install(engine)
    said = rnn_engine("chat", "m", stdin="One\n/undo\n/undo\nTwo\n")
    assert "taken back: One\n" in said
    assert "nothing was said yet" in said
    assert prompts(engine) == ["User: One\n\nAssistant:", "User: Two\n\nAssistant:"]


@given(
    st.lists(
        st.sampled_from(["a", "word ", "\n", "\n\n", "- item\n", "```\n", "# Title\n", "1. one\n", "> said\n", "    "])
    )
)
def test_blocks_are_the_text_however_it_comes(parts: list[str]) -> None:
    blocks = MarkdownBlocks()
    printed = [block for part in parts for block in blocks.add(part)]
    assert "".join(printed) + blocks.last == "".join(parts).lstrip()


@pytest.mark.parametrize("character", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c"])
def test_lines_end_where_markdown_ends_them(character: str) -> None:
    """Other characters at which Python divides lines are part of a line."""
    blocks = MarkdownBlocks()
    [printed] = blocks.add(f"one{character}two\r\nthree\r\rfour")
    assert (printed, blocks.last) == (f"one{character}two\r\nthree\r\r", "four")


def test_an_answer_is_drawn_at_once_and_by_one_thread() -> None:
    out = io.StringIO()
    screen = MarkdownScreen(Console(file=out, width=80, force_terminal=True))
    threads = threading.enumerate()
    with screen.answer() as show:
        show("Yes")
        assert "Yes" in out.getvalue()
        assert threading.enumerate() == threads  # lines of another thread would come between


def test_words_are_kept_whole() -> None:
    out = io.StringIO()
    screen = MarkdownScreen(Console(file=out, width=20, force_terminal=False))
    text = "Recurrent models keep their memory in a state.\n\n- all of it"
    with screen.answer() as show:
        for start in range(0, len(text), 4):
            show(text[start : start + 4])
    assert " ".join(out.getvalue().split()) == "Recurrent models keep their memory in a state. • all of it"
    assert max(map(len, out.getvalue().splitlines())) <= 20
