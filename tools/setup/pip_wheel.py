"""Get pip for a Python without it. Debian's and Ubuntu's Python lacks it unless python3-venv is installed.

Those systems have a package with pip's wheel, and apt can download a package without being root.
"""

from __future__ import annotations

from pathlib import Path

from tools.setup.shell import SetupError, Shell

PACKAGE = "python3-pip-whl"
ADVICE = "this Python can't make a virtual environment with pip in it; on Debian and Ubuntu: apt install python3-venv"


def fetch_pip_wheel(folder: Path, shell: Shell) -> Path:
    """Download pip's wheel into `folder` with apt, and return its path. Raises SetupError if that fails."""
    if not shell.has("apt-get"):
        raise SetupError(ADVICE)
    folder.mkdir(parents=True)
    shell.say(f"this Python has no pip; downloading it with apt ({PACKAGE})")
    try:
        _download(folder, shell)
        [archive] = folder.glob(f"{PACKAGE}_*.deb")
        shell.run("dpkg-deb", "--extract", str(archive), str(folder))
        [wheel] = folder.glob("usr/share/python-wheels/pip-*.whl")
    except (SetupError, ValueError) as error:
        raise SetupError(f"{ADVICE}\n  (downloading {PACKAGE} failed: {error})") from error
    return wheel


def _download(folder: Path, shell: Shell) -> None:
    """Download the Debian package of pip into `folder`.

    If apt has no package lists, download lists into `folder` first.
    """
    command = ("apt-get", "--quiet", "--quiet", "-o", "APT::Sandbox::User=root", "download", PACKAGE)
    if shell.read("apt-cache", "show", PACKAGE):
        shell.run(*command, cwd=str(folder))
        return
    options = ("-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    shell.run("apt-get", "--quiet", "--quiet", *options, "update")
    shell.run("apt-get", *options, *command[1:], cwd=str(folder))
