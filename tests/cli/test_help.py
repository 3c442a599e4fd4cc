"""Help, versions and wrong options are answered without importing what a command runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

import click
import pytest

from rnn_engine.bounds import FORMAT_NAMES
from rnn_engine.cli import SUBCOMMANDS, main
from rnn_engine.convert import TITLES
from rnn_engine.convert.convert import _WRITERS
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from tests.support.cli import Command
from tests.support.processes import ROOT

RUN = """
import json, sys
from click.testing import CliRunner
before = set(sys.modules)
from rnn_engine.cli import main
for arguments in json.load(sys.stdin):
    result = CliRunner().invoke(main, arguments, prog_name="rnn-engine")
    assert "Usage: rnn-engine" in result.output or "version" in result.output, result.output
print(json.dumps(sorted(set(sys.modules) - before)))
"""
LIBRARIES = {"click", "cloup", "typing_extensions"}
OWN = {"rnn_engine", "rnn_engine_server", "rnn_engine_states", "rnn_engine_shaders"}


def imported(*commands: Sequence[str]) -> set[str]:
    """Run commands in a process of their own, and return the modules that they import."""
    arguments = [sys.executable, "-c", RUN]
    done = subprocess.run(arguments, input=json.dumps(commands), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def libraries(modules: set[str]) -> set[str]:
    tops = {module.partition(".")[0] for module in modules}
    return {top for top in tops - sys.stdlib_module_names - OWN if not top.startswith("_")}


def test_the_list_of_commands_imports_no_command() -> None:
    modules = imported(["--help"], ["--version"], [], ["serv"])
    assert libraries(modules) <= {"click"}
    assert {module for module in modules if module.startswith("rnn_engine.cli.")} == set()


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_help_of_a_command_imports_only_what_its_options_need(name: str) -> None:
    modules = imported([name, "--help"], [name, "--no-such-option"])
    assert libraries(modules) <= LIBRARIES


def test_the_list_of_commands_has_their_own_words() -> None:
    context = click.Context(main)
    for name, subcommand in SUBCOMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(limit=1000).removesuffix(".") == subcommand.help.removesuffix(".")


@pytest.mark.parametrize("name", ["serve", "fleet", "chat", "generate"])
def test_help_shows_what_most_people_need_and_help_all_everything(rnn_engine: Command, name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    options = [option for option in command.params if isinstance(option, click.Option)]
    short, full = (
        re.split(r"^[A-Z].*:$", rnn_engine(name, option), maxsplit=1, flags=re.MULTILINE)[1]
        for option in ("--help", "--help-all")
    )
    listed = [option for option in options if re.search(rf"^  .*{option.opts[-1]}\b(?!-)", short, re.MULTILINE)]
    assert len(short.splitlines()) < 125
    assert 15 < len(listed) < 30
    assert f"{len(options) - len(listed)} more options: `rnn-engine {name} --help-all` shows them." in short
    for option in options:
        assert re.search(rf"^  .*{option.opts[-1]}\b(?!-)", full, re.MULTILINE)
    assert "more options:" not in full


def test_usage_names_the_output_that_help_speaks_of(rnn_engine: Command) -> None:
    assert "batch [OPTIONS] [MODEL] FILE -o OUT\n" in rnn_engine("batch", "--help")
    assert "tune-state [OPTIONS] [MODEL] DATA -o FILE\n" in rnn_engine("tune-state", "--help")


def test_names_in_help_are_those_of_the_code() -> None:
    assert tuple(WEIGHT_FORMATS) == FORMAT_NAMES
    assert tuple(TITLES) == tuple(_WRITERS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serv"], "no command 'serv'; did you mean serve?"),
        (["generte", "Hello"], "no command 'generte'; did you mean generate?"),
        (["bake"], "no command 'bake'; `rnn-engine --help` lists the commands"),
        (["serve", "--prot", "8000"], "--port"),
        (["key", "ann", "--scop", "use"], "--scope"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(rnn_engine: Command, arguments: list[str], words: str) -> None:
    assert words in rnn_engine(*arguments, code=2)
