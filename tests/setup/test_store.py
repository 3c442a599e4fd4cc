"""The server for the tests of shared states is installed if possible; otherwise a message asks for it."""

from __future__ import annotations

import pytest

from tests.support.fake_shell import FakeShell
from tools.setup.programs import STORE


@pytest.mark.parametrize("program", STORE.commands)
def test_a_server_that_is_there_is_taken(program: str) -> None:
    shell = FakeShell(programs=("apt-get", program))
    STORE.see_to(shell)
    assert (shell.commands, shell.said) == ([], [])


def test_root_installs_valkey_without_starting_it() -> None:
    shell = FakeShell()
    STORE.see_to(shell)
    assert shell.commands[-1].endswith("install --yes --no-install-recommends valkey-server")
    assert shell.commands[-1].startswith("env RUNLEVEL=1 ")


def test_a_release_without_valkey_gets_redis() -> None:
    shell = FakeShell(failing=("valkey-server",))
    STORE.see_to(shell)
    assert shell.commands[-1].endswith("install --yes --no-install-recommends redis-server")


@pytest.mark.parametrize(
    "shell",
    [FakeShell(programs=()), FakeShell(prefix=None), FakeShell(failing=("install",))],
    ids=("apt", "root", "net"),
)
def test_else_it_says_what_to_install(shell: FakeShell) -> None:
    STORE.see_to(shell)
    assert "apt-get install valkey-server" in shell.said[-1]
