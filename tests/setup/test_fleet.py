"""Ray is installed if pip can do it, and the set-up goes on if pip can't."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.setup.test_environment import WORKS, touch
from tests.support.fake_shell import FakeShell
from tools.setup.environment import Environment
from tools.setup.programs import see_to_fleet


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a checkout whose environment has the packages for testing."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    touch(tmp_path / ".venv" / "bin" / "python")
    Environment(tmp_path, FakeShell(answers=WORKS)).ensure("dev")
    return tmp_path


def test_it_is_installed_once_into_the_same_environment(root: Path) -> None:
    shell = FakeShell(answers=WORKS)
    for _ in range(2):
        see_to_fleet(Environment(root, shell), shell)
    [command] = shell.commands
    assert command.startswith(str(root / ".venv" / "bin" / "python"))
    assert command.endswith("--editable .[fleet]")
    Environment(root, shell).ensure("dev")
    assert len(shell.commands) == 1


def test_where_pip_can_not_the_rest_is_tested_and_one_line_says_so(root: Path) -> None:
    shell = FakeShell(answers=WORKS, failing=("[fleet]",))
    see_to_fleet(Environment(root, shell), shell)
    assert "replicas on Ray Serve are not tested" in shell.said[-1]
    see_to_fleet(Environment(root, shell), shell)
    assert len(shell.commands) == 2, "it is tried again"
