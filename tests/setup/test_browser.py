"""The browser for the tests of the web page is installed if possible; otherwise a message asks for it."""

from __future__ import annotations

import pytest

from tests.support.fake_shell import FakeShell
from tools.setup.programs import BROWSER


@pytest.mark.parametrize("program", BROWSER.commands)
def test_a_browser_that_is_there_is_taken(program: str) -> None:
    shell = FakeShell(programs=("apt-get", program))
    BROWSER.see_to(shell)
    assert (shell.commands, shell.said) == ([], [])


def test_root_installs_it() -> None:
    shell = FakeShell()
    BROWSER.see_to(shell)
    assert shell.commands[-1].endswith("install --yes --no-install-recommends chromium")


@pytest.mark.parametrize(
    "shell",
    [FakeShell(programs=()), FakeShell(prefix=None), FakeShell(failing=("install",))],
    ids=("apt", "root", "net"),
)
def test_else_it_says_what_to_install(shell: FakeShell) -> None:
    BROWSER.see_to(shell)
    assert "apt-get install chromium" in shell.said[-1]
