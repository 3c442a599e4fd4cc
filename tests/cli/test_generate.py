"""`rnn-engine generate` and `rnn-engine chat`: the requests to the engine, and the output in the terminal."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.chat_template.jinja import JinjaTemplate
from rnn_engine.cli.session import EngineChoice
from rnn_engine.demo import model_path
from rnn_engine.grammar import Grammar
from rnn_engine.model import LoraChoice
from rnn_engine.requests import GenerateRequest, SamplingParams
from tests.support.cli import Command
from tests.support.fake_engine import FakeEngine, encode

Install = Callable[[FakeEngine], list[EngineChoice]]


class TestGenerate:
    def test_follows_a_grammar(self, rnn_engine: Command, install: Install, tmp_path: Path) -> None:
        files = {
            "a.gbnf": 'root ::= "a"',
            "a.lark": 'start: "a"',
            "a.kbnf": 'start ::= "a";',
            "a.json": '{"type": "null"}',
        }
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        asked = {
            ("--grammar", tmp_path / "a.gbnf"): Grammar("gbnf", files["a.gbnf"]),
            ("--grammar", tmp_path / "a.lark"): Grammar("lark", files["a.lark"]),
            ("--grammar", tmp_path / "a.kbnf"): Grammar("kbnf", files["a.kbnf"]),
            ("--json-schema", tmp_path / "a.json"): Grammar("json_schema", files["a.json"]),
            ("--regex", "[a-b]"): Grammar("regex", "[a-b]"),
        }
        for option, grammar in asked.items():
            engine = FakeEngine()
            install(engine)
            rnn_engine("generate", "m.st", "-p", "Say", *option)
            assert engine.requests[0].grammar == grammar
        arguments = ("--regex", "a", "--grammar", tmp_path / "a.gbnf")
        assert "--grammar and --regex can't be used together" in rnn_engine(
            "generate", "m.st", "-p", "x", *arguments, code=2
        )

    def test_prints_the_continuation(self, rnn_engine: Command, install: Install) -> None:
        engine = FakeEngine(reply=lambda _: " é!")
        choices = install(engine)
        said = rnn_engine("generate", "m.st", "-p", "Say", "--device", "cpu", "--tokenizer", "world")
        assert said == " é!\n"
        assert [(str(choice.model), choice.loading.device, choice.loading.tokenizer) for choice in choices] == [
            ("m.st", "cpu", "world")
        ]
        assert list(engine.requests[0].prompt) == encode("Say")
        assert engine.closed

    def test_options_reach_the_engine(self, rnn_engine: Command, install: Install) -> None:
        engine = FakeEngine()
        install(engine)
        numbers: dict[str, Any] = {
            "temperature": 0.5,
            "top_p": 0.25,
            "top_k": 7,
            "presence_penalty": 1.0,
            "frequency_penalty": 2.0,
        }
        numbers |= {"penalty_decay": 0.5, "seed": 9}
        options = [part for name, value in numbers.items() for part in ("--" + name.replace("_", "-"), value)]
        options += ["--logit-bias", "5=-1.5", "--logit-bias", "7=2", "--stop", "x", "--stop", "yz", "--max-tokens", 3]
        rnn_engine("generate", "m", "-p", "a", *options)
        [request] = engine.requests
        assert (request.max_tokens, request.stop_bytes) == (3, (b"x", b"yz"))
        assert request.sampling == SamplingParams(**numbers, logit_bias={5: -1.5, 7: 2.0})

    def test_loras_reach_the_engine(self, rnn_engine: Command, install: Install) -> None:
        choices = install(FakeEngine())
        rnn_engine("generate", "m", "-p", "a", "--lora", "a.st:32", "--lora", "folder")
        assert choices[0].loading.loras == (LoraChoice(Path("a.st"), 32.0), LoraChoice(Path("folder")))
        said = rnn_engine("generate", "m", "-p", "a", "--lora", "a.st:nan", code=2)
        assert "'a.st:nan'; expected FILE or FILE:ALPHA with a finite number" in said

    def test_without_options_the_engine_has_its_own_defaults(self, rnn_engine: Command, install: Install) -> None:
        engine = FakeEngine()
        install(engine)
        rnn_engine("generate", "m", "-p", "a")
        assert engine.requests[0].sampling == SamplingParams()

    @pytest.mark.parametrize("bias", ["5", "5=", "=1", "5=x", "5=nan"])
    def test_a_bias_is_an_id_or_a_text_and_a_number(self, rnn_engine: Command, install: Install, bias: str) -> None:
        install(FakeEngine())
        said = rnn_engine("generate", "m", "-p", "a", "--logit-bias", bias, code=2)
        assert f"{bias!r}; expected ID=NUMBER" in said

    def test_biases_of_one_token_are_added_up(self, rnn_engine: Command, install: Install) -> None:
        install(engine := FakeEngine())
        biases = ("5=2", "5=1.5", "7=3", "7=false")
        rnn_engine("generate", "m", "-p", "a", *(part for bias in biases for part in ("--logit-bias", bias)))
        assert engine.requests[0].sampling.logit_bias == {5: 3.5, 7: -math.inf}

    def test_where_the_prompt_comes_from(self, rnn_engine: Command, install: Install, tmp_path: Path) -> None:
        demo, folder, long = model_path(), tmp_path / "a model", "Once upon a time. " * 1000
        folder.mkdir()
        for arguments, stdin, model, prompt in (
            ((), "from a pipe", demo, "from a pipe"),
            (("m.st",), "from a pipe", Path("m.st"), "from a pipe"),
            ((folder,), "from a pipe", folder, "from a pipe"),
            (("Say",), None, demo, "Say"),
            (("yes/no: Is it so?",), None, demo, "yes/no: Is it so?"),
            ((long,), None, demo, long),
            (("a name", "Say"), None, Path("a name"), "Say"),
            (("a name", "--prompt", "Say"), None, Path("a name"), "Say"),
        ):
            engine = FakeEngine()
            choices = install(engine)
            rnn_engine("generate", *arguments, stdin=stdin)
            [choice] = choices
            assert (choice.model, prompts(engine)) == (model, [prompt])

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("Once", "upon", "a", "time"), "4 arguments; expected MODEL and PROMPT; put PROMPT in quotes"),
            (("m.st", "Say", "--prompt", "Say"), "2 arguments; expected only MODEL beside --prompt"),
            (("rwkv7-0.1b",), "`rnn-engine pull rwkv7-0.1b` fetches it"),
        ],
    )
    def test_arguments_that_are_not_allowed(
        self, rnn_engine: Command, install: Install, arguments: tuple[str, ...], words: str
    ) -> None:
        install(FakeEngine())
        said = rnn_engine("generate", *arguments, stdin="", code=2)
        assert words in " ".join(said.split())

    def test_a_model_that_expects_turns_says_so_once(self, rnn_engine: Command, install: Install) -> None:
        jinja = JinjaTemplate(
            "Be kind.\n{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}\n{% endfor %}", {}
        )
        for template, turn in ((WorldTemplate(thinks=True), "User: Say\n\nAssistant:"), (jinja, "<|user|>\nSay\n")):
            install(FakeEngine(chat_template=template, reply=lambda _: "\n"))
            said = rnn_engine("generate", "Say")
            assert said.count("hint: ") == 1
            assert "expects a conversation" in said
            for arguments in (("Say", "--chat"), (turn,), ("--prompt", ""), ("--tokens", "1")):
                install(FakeEngine(chat_template=template))
                assert "expects a conversation" not in rnn_engine("generate", *arguments)
        install(FakeEngine(chat_template=WorldTemplate()))
        assert "hint: " not in rnn_engine("generate", "Say")

    def test_empty_standard_input_is_refused(self, rnn_engine: Command, install: Install) -> None:
        assert "standard input is empty" in rnn_engine("generate", "m.st", stdin="", code=2)

    def test_an_answer_of_blanks_alone_comes_with_a_hint(self, rnn_engine: Command, install: Install) -> None:
        install(FakeEngine(reply=lambda _: "\n\n"))
        said = rnn_engine("generate", "m", "-p", "Hello")
        assert said.startswith("\n\n\nhint: ")
        assert "add --chat" in said
        install(FakeEngine(reply=lambda _: "\n\n"))
        assert rnn_engine("generate", "m", "--tokens", "1") == " ".join(map(str, encode("\n\n"))) + " \n"

    def test_empty_prompt_is_the_end_of_text(self, rnn_engine: Command, install: Install) -> None:
        engine = FakeEngine()
        install(engine)
        rnn_engine("generate", "m", "-p", "")
        assert list(engine.requests[0].prompt) == [0]

    def test_tokens_in_tokens_out(self, rnn_engine: Command, install: Install) -> None:
        engine = FakeEngine(reply=lambda _: "ab")
        install(engine)
        assert rnn_engine("generate", "m", "--tokens", "5,6").split() == [str(token) for token in encode("ab")]
        assert list(engine.requests[0].prompt) == [5, 6]

    def test_prompt_and_tokens_exclude_each_other(self, rnn_engine: Command, install: Install) -> None:
        install(FakeEngine())
        assert "can't be used together" in rnn_engine("generate", "m", "-p", "a", "--tokens", "1", code=2)

    def test_values_that_are_not_allowed(self, rnn_engine: Command, install: Install) -> None:
        install(FakeEngine())
        assert "top_p: 3.0 is not allowed" in rnn_engine("generate", "m", "-p", "a", "--top-p", "3", code=2)

    def test_failure_of_the_device(self, rnn_engine: Command, install: Install) -> None:
        engine = FakeEngine(fail_at=1)
        install(engine)
        assert "Error: the device was lost" in rnn_engine("generate", "m", "-p", "a", code=1)
        assert engine.closed

    def test_ctrl_c(self, rnn_engine: Command, install: Install) -> None:
        engine = FakeEngine(reply=interrupt)
        install(engine)
        rnn_engine("generate", "m", "-p", "a", code=130)
        assert engine.active == 0
        assert engine.closed


def test_ctrl_c_while_loading_ends_the_loading_thread(rnn_engine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = itertools.count()

    def load_slowly(progress: Callable[[str, int, int], None]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while next(reports) < 1_000_000:
            progress("loading", 0, 1)

    async def load(*_: object, progress: Callable[[str, int, int], None], **__: object) -> None:
        await asyncio.to_thread(load_slowly, progress)

    monkeypatch.setattr("rnn_engine.engine.Engine.load", load)
    rnn_engine("generate", "m", "-p", "a", code=130)
    assert next(reports) < 1_000_000


def interrupt(_: GenerateRequest) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "never said"


def prompts(engine: FakeEngine) -> list[str]:
    return [engine.detokenize(request.prompt).decode() for request in engine.requests]


def test_a_question_alone_is_asked_as_a_chat_has_it(rnn_engine: Command, install: Install) -> None:
    engine = FakeEngine(reply=lambda _: " é!")
    install(engine)
    assert rnn_engine("generate", "m", "--chat", "--prompt", "One", "--stop", "x") == "é!\n"
    assert prompts(engine) == ["User: One\n\nAssistant:"]
    assert engine.requests[0].stop_bytes == (b"x", b"\n\n")
    said = rnn_engine("generate", "m", "--chat", "--tokens", "1", code=2)
    assert "--chat and --tokens can't be used together" in said


class TestChat:
    def test_conversation(self, rnn_engine: Command, install: Install) -> None:
        engine = FakeEngine(reply=lambda request: f" {len(request.penalised_prompt)}")
        install(engine)
        said = rnn_engine("chat", "m", "--system", "Count.", "--presence-penalty", "0.3", stdin="One\n\nTwo\n")
        assert prompts(engine) == [
            "System: Count.\n\nUser: One\n\nAssistant:",
            "System: Count.\n\nUser: One\n\nAssistant: 0\n\nUser: Two\n\nAssistant:",
        ]
        assert said == "0\n2\n"
        assert all(request.stop_bytes == (b"\n\n",) for request in engine.requests)
        assert engine.closed

    def test_new_starts_over_and_exit_leaves(self, rnn_engine: Command, install: Install) -> None:
        engine = FakeEngine()
        install(engine)
        rnn_engine("chat", "m", stdin="One\n/new\nTwo\n/exit\nThree\n")
        assert prompts(engine) == ["User: One\n\nAssistant:", "User: Two\n\nAssistant:"]

    def test_ctrl_c_ends_the_answer_alone(self, rnn_engine: Command, install: Install) -> None:
        def reply(request: GenerateRequest) -> str:
            return interrupt(request) if len(engine.requests) == 1 else " Yes"

        engine = FakeEngine(reply=reply)
        install(engine)
        said = rnn_engine("chat", "m", stdin="One\nTwo\n")
        assert said == "\n(ended)\nYes\n"
        assert prompts(engine)[1] == "User: One\n\nUser: Two\n\nAssistant:"
        assert engine.active == 0


def test_the_best_weights_that_fit_are_taken_and_a_model_that_is_too_large_is_refused(
    rnn_engine: Command, model_file: Path
) -> None:
    ask = ("generate", model_file, "--tokens", "1,2", "--max-tokens", 1, "--weights")
    rnn_engine(*ask, "auto", "--device-memory", "1G")
    refused = rnn_engine(*ask, "f16", "--device-memory", "100K", code=1)
    assert "the model needs" in refused
    assert "more than the 0.1 MB that" in refused
    assert "'int5'; expected auto, or one of the formats" in rnn_engine(*ask, "int5", code=2)
