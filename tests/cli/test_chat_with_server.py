"""`rnn-engine chat --url`: the same conversation against a server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rnn_engine.cli.chat.conversation import Reply
from rnn_engine.cli.session import EngineChoice
from rnn_engine.errors import OverloadedError
from rnn_engine.requests import GenerateRequest
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.broken_server import broken_server
from tests.support.cli import Command
from tests.support.demo_server import demo_server, engine_server
from tests.support.fake_engine import FakeEngine
from tests.support.terminal import CTRL_C, open_terminal

Install = Callable[[FakeEngine], list[EngineChoice]]
OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n"
HELLO = b'data: {"choices": [{"index": 0, "delta": {"content": "Hello"}}]}\n\n'


async def loaded(engine: FakeEngine) -> FakeEngine:
    return engine


def prompts(engine: FakeEngine) -> list[str]:
    return [engine.detokenize(request.prompt).decode() for request in engine.requests]


def test_a_server_is_talked_with_as_an_engine_here(rnn_engine: Command, install: Install, tmp_path: Path) -> None:
    def run(engine: FakeEngine, *arguments: str) -> str:
        said = rnn_engine(
            "chat", *arguments, "--temperature", 0.5, "--logit-bias", "5=false", "--seed", 3,
            stdin="One\n/fork a\nTwo\n/undo\n/name b\n/name b\n/state\n/state away\n/state none\n/retry\n/go a\n"
            f"Three\n/save {tmp_path / arguments[0]}\n/load {tmp_path / arguments[0]}\n/system Be kind.\nFour\n"
            "/state b\nFive\n/sampling top_k=7\nSix\n",
        )  # fmt: skip
        return "\n".join(line for line in said.splitlines()[1:] if "loads" not in line and "'b'" not in line)

    here, there = (FakeEngine(reply=lambda request: f" {len(request.prompt)}") for _ in range(2))
    install(here)
    said_here = run(here, "m")
    with engine_server(lambda: loaded(there)) as url:
        said_there = run(there, "--url", url)
    assert said_there.replace("--url", "m") == said_here
    assert "tokens is called b; /state b continues from it" in said_here
    assert "* none (the default)\n  b\n" in said_here
    assert "unknown state 'away'; there are: none, b" in said_here
    assert prompts(there) == prompts(here)
    for ours, theirs in zip(here.requests, there.requests, strict=True):
        if ours.max_tokens > 0:
            assert theirs.sampling == ours.sampling
        assert (theirs.initial_state is None) == (ours.initial_state is None)
        assert theirs.max_tokens == ours.max_tokens


def test_states_of_a_server(rnn_engine: Command, tmp_path: Path) -> None:
    file = tmp_path / "paris.state"
    question = "What is the capital of France?"
    with demo_server(ServerSettings()) as url:
        said = rnn_engine(
            "chat", "demo", "--url", url, "--temperature", 0, "--system", "Be kind.",
            stdin=f"{question}\n/name paris\n/save {file}\n/load {file}\n/state\n/stats\n",
        )  # fmt: skip
        again = rnn_engine("chat", "--url", f"{url}/v1/", "--temperature", 0, "--state", "paris", stdin="/state\n")
    assert "The capital of France is Paris." in said
    assert "  paris\n* paris-2\n" in said
    assert "were in the cache" in said
    assert "* paris\n" in again
    assert "paris-2" not in again
    with_file = rnn_engine("chat", "--device", "cpu", "--temperature", 0, "--state", file, stdin=f"{question}\n")
    assert "The capital of France is Paris." in with_file


def test_ctrl_c_frees_the_slot_of_the_server(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(hold=3, reply=lambda _: " Yes it is")

    def reply(_: GenerateRequest) -> str:
        if len(engine.requests) == 2:
            engine.hold = None
        return " Yes it is"

    def add(self: Reply, text: str, num_tokens: int = 0) -> None:
        add_text(self, text, num_tokens)
        if self.text == "Ye" and engine.hold is not None:
            signal.raise_signal(signal.SIGINT)

    add_text = Reply.add
    monkeypatch.setattr(Reply, "add", add)
    engine.reply = reply
    with engine_server(lambda: loaded(engine)) as url:
        said = rnn_engine("chat", "--url", url, stdin="One\nTwo\n/undo\n")
    assert engine.left.is_set()
    assert engine.active == 0
    assert "Ye\n(ended)\n" in said
    assert "Yes it is\n" in said
    assert prompts(engine)[1] == "User: One\n\nAssistant: Ye\n\nUser: Two\n\nAssistant:"


def test_in_a_terminal(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(60))

    def reply(_: GenerateRequest) -> str:
        engine.hold = 3 if len(engine.requests) == 2 else None
        return f"# A title\n{words}\n- *one*\n- two" if len(engine.requests) == 1 else "Yes it is."

    engine = FakeEngine(reply=reply)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with (
        engine_server(lambda: loaded(engine)) as url,
        open_terminal("chat", "--url", url, "--max-tokens", 1000, environment=environment) as terminal,
    ):
        terminal.wait_for_prompt()
        terminal.paste("First line\nsecond line")
        terminal.type("\r")
        terminal.wait_for("• two")
        terminal.wait_for_prompt()
        shown = " ".join(" ".join(terminal.lines).split())
        assert "A title" in shown
        assert f"{words} • one" in shown  # no word is cut
        terminal.type("Held\r")
        terminal.wait_for("Yes")
        terminal.type(CTRL_C)
        terminal.wait_for("(ended)")
        terminal.wait_for_prompt()
        assert engine.left.is_set()
        for line, answer in (
            ("/undo", "taken back: Held"),
            ("/fork here", "put aside"),
            ("/system Be kind.", "a new conversation, with this system text"),
            ("/sampling top_k=5", "top_k=5"),
            ("Again", "Yes it is."),
            ("/stats", "were in the cache"),
            ("/go here", "back at here; last message: # A title"),
            ("/name talk", "continues from it"),
        ):
            terminal.type(f"{line}\r")
            terminal.wait_for(answer)
            terminal.wait_for_prompt()
        terminal.type("/state t\t")
        terminal.wait_for("User: /state talk")
        terminal.type("\r")
        terminal.wait_for("a new conversation, from the state talk")
        terminal.wait_for_prompt()
        terminal.type("/quit\r")
        assert terminal.wait_for_end() == 0
    assert prompts(engine)[0] == "User: First line\nsecond line\n\nAssistant:"
    with open_terminal("generate", environment=environment) as terminal:
        terminal.wait_for("give PROMPT or --tokens")
        assert terminal.wait_for_end() == 2


def test_a_paste_during_an_answer_waits_as_one_message(tmp_path: Path) -> None:
    def reply(_: GenerateRequest) -> str:
        engine.hold = 3 if len(engine.requests) == 1 else None
        return "Yes it is."

    engine = FakeEngine(reply=reply)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with (
        engine_server(lambda: loaded(engine)) as url,
        open_terminal("chat", "--url", url.removeprefix("http://"), environment=environment) as terminal,
    ):
        terminal.wait_for_prompt()
        terminal.type("Held\r")
        terminal.wait_for("Yes")
        terminal.paste("First line\nsecond line")
        terminal.type(CTRL_C)
        terminal.wait_for("      second line")
        assert len(engine.requests) == 1
        assert terminal.lines[-4:] == ["Yes", "(ended)", "User: First line", "      second line"]
        terminal.type("\r")
        terminal.wait_for("Yes it is.")
        terminal.wait_for_prompt()
        terminal.type("/quit\r")
        assert terminal.wait_for_end() == 0
    assert prompts(engine)[1].endswith("User: First line\nsecond line\n\nAssistant:")


def test_a_server_that_fails_leaves_the_conversation_going(rnn_engine: Command) -> None:
    busy = b'{"error": {"message": "the queue is full"}}'
    with broken_server(
        OK + HELLO,
        OK + HELLO + b"data: [DONE]\n\n",
        b"HTTP/1.1 429 Too Many\r\nConnection: close\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n%b"
        % (len(busy), busy),
        b"",
        b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        OK + b'data: {"error": {"message": "the device was lost"}}\n\n',
        OK + b"data: {nonsense\n\n",
        OK.replace(b"\r\n\r\n", b"\r\nContent-Length: 999\r\n\r\n") + HELLO,
        OK + HELLO + b"data: [DONE]\n\n",
    ) as url:
        said = rnn_engine(
            "chat", "--url", url, stdin="One\n/retry\nTwo\n/retry\n/retry\n/retry\n/retry\n/retry\n/retry\n"
        )
    answers = said.split("User: ")[1:]
    for answer, words in zip(
        answers,
        (
            "Hello\nthe server closed the connection before the end of the answer\n",
            "Hello\n",
            "the queue is full. Try again in 7 s\n",
            f"the connection to {url} broke: Server disconnected",
            f"{url} answered 502 Bad Gateway\n",
            "the device was lost\n",
            f"{url} answered with invalid JSON: ",
            f"Hello\nthe connection to {url} broke: peer closed connection",
            "Hello\n",
        ),
        strict=False,
    ):
        assert answer.startswith(words)


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (b"[]", "answer: [] is not allowed; expected an object, as from rnn-engine or another server"),
        (b"{}", "data: None is not allowed; expected a list"),
        (b'{"data": {}}', "data: {} is not allowed; expected a list"),
        (b'{"data": ["a"]}', "data.0: 'a' is not allowed; expected an object"),
        (b'{"data": [{"id": 3}]}', "id: 3 is not allowed; expected a text"),
        (b"[" * 100_000, "answered with invalid JSON"),
    ],
    ids=["list", "no data", "wrong data", "wrong model", "wrong id", "deep"],
)
def test_a_list_of_models_of_another_form_is_an_error_of_one_line(
    rnn_engine: Command, models: bytes, words: str
) -> None:
    with broken_server(models=models) as url:
        said = rnn_engine("chat", "--url", url, stdin="Hi\n", code=1)
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b"[]", "answer: [] is not allowed; expected an object"),
        (b"null", "answer: None is not allowed; expected an object"),
        (b'{"choices": 3}', "choices: 3 is not allowed; expected a list"),
        (b'{"choices": [null]}', "choices.0: None is not allowed; expected an object"),
        (b'{"choices": [{"delta": "a"}]}', "delta: 'a' is not allowed; expected an object"),
        (b'{"choices": [{"delta": {"content": ["a"]}}]}', "content: ['a'] is not allowed; expected a text"),
        (b'{"choices": [], "usage": {"prompt_tokens": true}}', "prompt_tokens: True is not allowed; expected a whole"),
        (b'{"error": "the model is missing"}', "the model is missing"),
        (b'{"error": {"code": 3}}', "the server reports an error: {'code': 3}"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value[:20],
)
def test_an_event_of_another_form_ends_the_answer_with_one_line(rnn_engine: Command, event: bytes, words: str) -> None:
    with broken_server(OK + HELLO + b"data: %b\n\n" % event, OK + HELLO + b"data: [DONE]\n\n") as url:
        said = rnn_engine("chat", "--url", url, stdin="Hi\n/retry\n")
    first, second = said.split("Hello\n")[1:]
    assert words in first
    assert "Traceback" not in said
    assert second == ""


def test_fields_that_other_servers_leave_out_are_not_missed(rnn_engine: Command) -> None:
    events = (
        b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": null}}], "error": null}\n\n',
        b'data: {"choices": [{"index": 0}], "usage": null}\n\n',
        HELLO,
        b'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n',
        b"data: [DONE]\n\n",
    )
    states = b'{"data": [{"name": "a", "num_tokens": null}, {"name": "b"}]}'
    with broken_server(OK + b"".join(events), states=states) as url:
        said = rnn_engine("chat", "--url", url, stdin="Hi\n/stats\n/state\n")
    assert "Hello\n" in said
    assert "1 tokens in" in said
    assert "of the prompt's 3 tokens 0 were in the cache" in said
    assert "* none (the default)\n  a\n  b\n" in said


def test_a_password_in_the_address_is_not_shown(rnn_engine: Command) -> None:
    with broken_server(OK + b"data: {nonsense\n\n") as url:
        said = rnn_engine("chat", "--url", url.replace("//", "//ann:secret@"), stdin="Hi\n")
    assert f"{url} answered with invalid JSON" in said
    assert "secret" not in said
    for wrong in (
        "http://ann:sec/secret@host",
        "http://ann:secret@[host",
        "ann:secret@host",
        "http://ann:secret@127.0.0.1:9",
    ):
        said = rnn_engine("chat", "--url", wrong, stdin="Hi\n", code=1)
        assert "sec" not in said.replace("seconds", "")


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\u001c"])
def test_a_character_that_python_takes_for_the_end_of_a_line_is_part_of_the_answer(
    rnn_engine: Command, character: str
) -> None:
    """JSON may hold them unescaped, and in a stream of events only \\r and \\n end a line."""
    engine = FakeEngine(reply=lambda _: f" One{character}two")
    with engine_server(lambda: loaded(engine)) as url:
        said = rnn_engine("chat", "--url", url, stdin="Hi\n")
    assert f"One{character}two\n" in said


def test_an_answer_that_is_no_stream_of_events_is_told(rnn_engine: Command) -> None:
    page = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n<html></html>"
    with broken_server(page) as url:
        said = rnn_engine("chat", "--url", url, stdin="Hi\n")
    assert f"{url} answered with something that is no stream of events: " in said


def test_a_full_queue_and_a_wrong_key(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RNN_ENGINE_API_KEY", raising=False)
    engine = FakeEngine(refuse=OverloadedError("the queue is full", 2.0))
    settings = ServerSettings(auth=AuthSettings(keys=(ApiKey.of("right", "ann", Scope.USE),)))
    with engine_server(lambda: loaded(engine), settings) as url:
        for key in ((), ("--api-key", "wrong")):
            said = rnn_engine("chat", "--url", url, *key, stdin="One\n", code=1)
            assert "the API key is missing or wrong" in said
            assert "Give the key as --api-key or in RNN_ENGINE_API_KEY" in said
        assert "expected printable ASCII" in rnn_engine(
            "chat", "--url", url, "--api-key", "schlüssel", stdin="", code=1
        )
        monkeypatch.setenv("RNN_ENGINE_API_KEY", "right")
        said = rnn_engine("chat", "--url", url, "--system", "Be kind.", stdin="One\n/name x\n/quit\n")
    assert "the queue is full. Try again in 2 s" in said
    assert "states can't be kept with the scope 'use'; that needs 'manage'" in said


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("--url", "http://127.0.0.1:9"), "http://127.0.0.1:9 can't be reached: ", 1),
        (("--url", "127.0.0.1:9"), "http://127.0.0.1:9 can't be reached: ", 1),
        (("--url", "localhost:9/v1/"), "http://localhost:9 can't be reached: ", 1),
        (
            ("--url", "ftp://127.0.0.1:9"),
            "'ftp://127.0.0.1:9' is no address of a server; expected HOST:PORT, http://",
            1,
        ),
        (("--url", "http://[x"), "http://[x", 1),
        (("--url", "http://127.0.0.1:9", "--device", "cpu"), "--device can't be used with --url", 2),
        (("--url", "http://127.0.0.1:9", "--lora", "a.st"), "--lora can't be used with --url", 2),
    ],
)
def test_a_server_that_can_not_be_talked_with(
    rnn_engine: Command, arguments: tuple[str, ...], words: str, code: int
) -> None:
    assert words in rnn_engine("chat", *arguments, stdin="One\n", code=code)
