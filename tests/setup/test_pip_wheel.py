"""pip's wheel is taken from a Debian package, with or without the system's package lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_shell import FakeShell
from tools.setup.environment import PIP_PACKAGE, fetch_pip_wheel
from tools.setup.shell import SetupError

WHEEL = "usr/share/python-wheels/pip-23.0.1-py3-none-any.whl"


def shell_with_archive(folder: Path, **options: object) -> FakeShell:
    def extract() -> None:
        (folder / WHEEL).parent.mkdir(parents=True)
        (folder / WHEEL).touch()

    effects = {f"download {PIP_PACKAGE}": (folder / f"{PIP_PACKAGE}_23_all.deb").touch, "dpkg-deb": extract}
    return FakeShell(effects=effects, **options)  # type: ignore[arg-type]


def test_the_systems_package_lists_are_used(tmp_path: Path) -> None:
    shell = shell_with_archive(tmp_path / "pip", answers={"apt-cache show": f"Package: {PIP_PACKAGE}"})
    assert fetch_pip_wheel(tmp_path / "pip", shell) == tmp_path / "pip" / WHEEL
    assert [command.split()[0] for command in shell.commands] == ["apt-get", "dpkg-deb"]


def test_without_lists_its_own_are_fetched_first(tmp_path: Path) -> None:
    shell = shell_with_archive(tmp_path / "pip")
    assert fetch_pip_wheel(tmp_path / "pip", shell) == tmp_path / "pip" / WHEEL
    update, download, _ = shell.commands
    assert update.endswith(" update")
    for command in (update, download):
        assert f"Dir::State::lists={tmp_path / 'pip' / 'lists'}" in command


@pytest.mark.parametrize("programs", [(), ("apt-get",)])
def test_where_it_cannot_be_had_the_error_says_what_to_install(tmp_path: Path, programs: tuple[str, ...]) -> None:
    with pytest.raises(SetupError, match="apt install python3-venv"):
        fetch_pip_wheel(tmp_path / "pip", FakeShell(programs=programs, failing=("download",)))
