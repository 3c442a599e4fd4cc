"""Create the virtual environment `.venv` of a checkout, and install packages into it.

A record in `.venv` lists the installed extras with a hash of pyproject.toml, so that a second call has nothing to do.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tools.setup.shell import SetupError, Shell

Extra = Literal["run", "dev", "fleet"]
"""What is installed: `run` for serving and chatting; `dev` for linting and testing, too; `fleet` for Ray."""

REQUIREMENT = {"run": ".[cpu]", "dev": ".[dev]", "fleet": ".[fleet]"}
_HOLDS: dict[Extra, tuple[Extra, ...]] = {"run": ("run", "dev"), "dev": ("dev",), "fleet": ("fleet",)}
PIP_PACKAGE = "python3-pip-whl"
"""Debian's and Ubuntu's package with pip's wheel. apt can download it without being root."""

_PIP_ADVICE = (
    "this Python can't make a virtual environment with pip in it; on Debian and Ubuntu: apt install python3-venv"
)


class Environment:
    """The virtual environment `.venv` of a checkout, and the record of what the set-up installed in it."""

    def __init__(self, root: Path, shell: Shell) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self._record_path = self.folder / "rnn-engine-setup.json"
        self._shell = shell

    def ensure(self, extra: Extra) -> None:
        """Install the packages of `extra`, unless the environment's record says that they are installed."""
        key = self._key()
        record = self._read_record()
        if self.python.exists() and key in (record.get(holder) for holder in _HOLDS[extra]):
            return
        if record.get("root", str(self.root)) != str(self.root) or not self._works():
            self._create()
            record = {}
        self._install(extra)
        self._record_path.write_text(json.dumps({**record, "root": str(self.root), extra: key}, indent=2) + "\n")

    def _key(self) -> str:
        """Return a hash of all that the installed packages depend on. When it changes, they must be installed again."""
        pyproject = (self.root / "pyproject.toml").read_bytes()
        facts = [sys.version, str(self.root), hashlib.sha256(pyproject).hexdigest()]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()

    def _read_record(self) -> dict[str, Any]:
        try:
            record = json.loads(self._record_path.read_text())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def _works(self) -> bool:
        """Return True if the environment has pip and the version of Python that runs this set-up."""
        return self._shell.read(str(self.python), "-c", "import pip, sys; print(sys.version)") == f"{sys.version}\n"

    def _create(self) -> None:
        self._shell.say(f"making a virtual environment with Python {sys.version.split()[0]}")
        shutil.rmtree(self.folder, ignore_errors=True)
        base = getattr(sys, "_base_executable", sys.executable)
        if find_spec("venv") is None:
            raise SetupError("this Python has no module venv; on Debian and Ubuntu: apt install python3-venv")
        if find_spec("ensurepip") is not None:
            self._shell.run(base, "-m", "venv", str(self.folder))
            return
        self._shell.run(base, "-m", "venv", "--without-pip", str(self.folder))
        wheel = fetch_pip_wheel(self.folder / "pip-download", self._shell)
        self._shell.run(str(self.python), f"{wheel}/pip", "install", "--quiet", "--no-index", str(wheel))
        shutil.rmtree(self.folder / "pip-download")

    def _install(self, extra: Extra) -> None:
        self._shell.say(f"installing packages into .venv ({extra}); the first time this takes a minute or two")
        command = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        if extra == "fleet":
            command.append("--no-compile")  # few of Ray's modules are imported
        command.append("--editable")
        try:
            self._shell.run(str(self.python), *command, REQUIREMENT[extra], cwd=str(self.root))
        except SetupError as error:
            raise SetupError(f"pip could not install the packages; its own messages are above ({error})") from error


def fetch_pip_wheel(folder: Path, shell: Shell) -> Path:
    """Download pip's wheel into `folder` with apt, and return its path. Raises SetupError if that fails."""
    if not shell.has("apt-get"):
        raise SetupError(_PIP_ADVICE)
    folder.mkdir(parents=True)
    shell.say(f"this Python has no pip; downloading it with apt ({PIP_PACKAGE})")
    try:
        _download(folder, shell)
        [archive] = folder.glob(f"{PIP_PACKAGE}_*.deb")
        shell.run("dpkg-deb", "--extract", str(archive), str(folder))
        [wheel] = folder.glob("usr/share/python-wheels/pip-*.whl")
    except (SetupError, ValueError) as error:
        raise SetupError(f"{_PIP_ADVICE}\n  (downloading {PIP_PACKAGE} failed: {error})") from error
    return wheel


def _download(folder: Path, shell: Shell) -> None:
    """Download the Debian package of pip into `folder`, and before it apt's package lists if apt has none."""
    command = ("apt-get", "--quiet", "--quiet", "-o", "APT::Sandbox::User=root", "download", PIP_PACKAGE)
    if shell.read("apt-cache", "show", PIP_PACKAGE):
        shell.run(*command, cwd=str(folder))
        return
    options = ("-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    shell.run("apt-get", "--quiet", "--quiet", *options, "update")
    shell.run("apt-get", *options, *command[1:], cwd=str(folder))
