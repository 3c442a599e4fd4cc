"""The cases in which the environment is made, packages are installed, or nothing is done."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.fake_shell import FakeShell
from tools.setup import environment as module
from tools.setup.environment import Environment
from tools.setup.shell import SetupError

WORKS = {"import pip, sys": f"{sys.version}\n"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout on a machine whose Python is complete."""
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return tmp_path


def ensure(root: Path, extra: module.Extra, *, works: bool = True, failing: tuple[str, ...] = ()) -> list[str]:
    """Return the commands that `ensure` runs, shortened to their essential words."""
    shell = FakeShell(answers=WORKS if works else {}, failing=failing)
    environment = Environment(root, shell)
    shell.effects = {"-m venv": lambda: touch(environment.python)}
    environment.ensure(extra)
    return [command.split(" -m ")[-1].split()[0] + " " + command.split()[-1] for command in shell.commands]


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch()


def test_a_fresh_checkout_gets_an_environment_and_the_packages(root: Path) -> None:
    assert ensure(root, "run", works=False) == [f"venv {root / '.venv'}", "pip .[cpu]"]


def test_a_second_call_does_nothing(root: Path) -> None:
    ensure(root, "run", works=False)
    assert ensure(root, "run") == []


def test_dev_holds_what_run_needs_but_not_the_reverse(root: Path) -> None:
    ensure(root, "run", works=False)
    assert ensure(root, "dev") == ["pip .[dev]"]
    assert ensure(root, "run") == []
    assert ensure(root, "dev") == []


def test_a_changed_pyproject_is_installed_again(root: Path) -> None:
    ensure(root, "dev", works=False)
    (root / "pyproject.toml").write_text("[project]\ndependencies = ['numpy']\n")
    assert ensure(root, "run") == ["pip .[cpu]"]
    assert ensure(root, "dev") == ["pip .[dev]"]


def test_an_environment_that_does_not_work_is_made_anew(root: Path) -> None:
    ensure(root, "run", works=False)
    (root / ".venv" / "bin" / "python").unlink()
    assert ensure(root, "run", works=False) == [f"venv {root / '.venv'}", "pip .[cpu]"]


def test_an_environment_that_was_moved_is_made_anew(root: Path) -> None:
    ensure(root, "run", works=False)
    moved = root.parent / "moved"
    root.rename(moved)
    assert ensure(moved, "run") == [f"venv {moved / '.venv'}", "pip .[cpu]"]


def test_a_failed_installation_is_tried_again(root: Path) -> None:
    with pytest.raises(SetupError, match="pip could not install"):
        ensure(root, "run", works=False, failing=("--editable",))
    assert ensure(root, "run") == ["pip .[cpu]"]


def test_a_damaged_record_counts_as_none(root: Path) -> None:
    ensure(root, "run", works=False)
    (root / ".venv" / "rnn-engine-setup.json").write_text("[")
    assert ensure(root, "run") == ["pip .[cpu]"]


def test_a_python_without_pip_gets_the_one_that_apt_has(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "ensurepip" else name)
    monkeypatch.setattr(module, "fetch_pip_wheel", make_wheel)
    assert ensure(root, "run", works=False) == [
        f"venv {root / '.venv'}",
        f"{root}/.venv/bin/python pip.whl",
        "pip .[cpu]",
    ]
    assert not (root / ".venv" / "pip-download").exists()


def make_wheel(folder: Path, shell: FakeShell) -> Path:
    folder.mkdir(parents=True)
    return Path("pip.whl")


def test_a_python_without_venv_is_an_error_that_names_the_package(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match="apt install python3-venv"):
        ensure(root, "run", works=False)
