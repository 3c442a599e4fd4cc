"""Install client programs, each in a fresh environment, and use them with a server as their documentation shows.

    rnn-engine serve --device cpu & python -m tools.clients --url http://127.0.0.1:65530 langgraph codex

The tool tries the clients that you name, or else all. It needs uv, and npm for what runs on node, on the path. An
environment is removed when its client was tried. Instructions of coding agents are long, so that a first answer may
take minutes on a CPU.

The demo model can answer the questions. A check passes if the package accepts the answer: if it is right, if it parses
into the type that was requested, or if the tool is called and its result is sent back. Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.clients import programs
from tools.clients.checks import Row, read_clients

_FOLDER = Path(__file__).parent
_PROJECT = _FOLDER.parents[1]

_CLIENTS = read_clients()
PYTHON: Mapping[str, str] = _CLIENTS["python"]
ALL = [*PYTHON, *(f"npm:{name}" for name in _CLIENTS["node"]), *programs.PROGRAMS]
_SHOWN = 110  # characters of an outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:65530", help="the server's root")
    parser.add_argument("clients", nargs="*", help=f"clients to try, of {', '.join(ALL)}; all if none is given")
    arguments = parser.parse_args()
    if unknown := set(arguments.clients) - set(ALL):
        parser.error(f"unknown client: {', '.join(sorted(unknown))}; allowed: {', '.join(ALL)}")
    root = arguments.url.rstrip("/")
    print("| client | what | works | outcome |\n|---|---|---|---|", flush=True)
    failed = False
    for name in arguments.clients or ALL:
        with tempfile.TemporaryDirectory(prefix="rnn-engine-client-") as folder:
            for version, row in _try(name, root, Path(folder)):
                failed |= not row.works
                shown = " ".join(row.outcome.split())[:_SHOWN].replace("|", "\\|")
                print(f"| {name} {version} | {row.what} | {'yes' if row.works else 'no'} | `{shown}` |", flush=True)
    sys.exit(failed)


def _try(name: str, root: str, folder: Path) -> Iterator[tuple[str, Row]]:
    """Install a client in `folder` and run its checks. Yield the client's version with each outcome."""
    if name in PYTHON:
        version = _install_python(folder, PYTHON[name].split())
        command = [folder / "bin" / "python", "-m", "tools.clients.run_checks", name, f"{root}/v1"]
        environment = {**os.environ, "PYTHONPATH": str(_PROJECT), "HOME": str(folder), "OPENAI_API_KEY": "-"}
        found = _lines(command, _PROJECT, environment)
    elif name.startswith("npm:"):
        package = name.removeprefix("npm:")
        shutil.copytree(_FOLDER, folder, dirs_exist_ok=True)
        _run(["npm", "ci", "--ignore-scripts"], folder / "node")
        version = _npm_version(folder / "node", package)
        script = package.strip("@").replace("/", "-")
        found = _lines(["node", f"{script}.mjs", f"{root}/v1"], folder / "node", os.environ)
    else:
        package = programs.PROGRAMS[name].package
        is_python = "==" in package
        version = _install_python(folder, [package]) if is_python else _install_npm(folder, package)
        commands = folder / "bin" if is_python else folder / "node_modules" / ".bin"
        found = programs.rows(name, root, f"{commands}:{os.environ['PATH']}")
    for row in found:
        yield version, row


def _install_python(folder: Path, requirements: list[str]) -> str:
    _run(["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], folder)
    python = str(folder / "bin" / "python")
    _run(["uv", "pip", "install", "--quiet", "--python", python, "pydantic", *requirements], folder)
    distribution = requirements[0].partition("[")[0].partition("==")[0]
    code = f"from importlib.metadata import version; print(version({distribution!r}))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _install_npm(folder: Path, package: str) -> str:
    _run(["npm", "install", "--silent", "--prefix", str(folder), f"{package}@latest"], folder)
    return _npm_version(folder, package)


def _npm_version(folder: Path, package: str) -> str:
    return str(json.loads((folder / "node_modules" / package / "package.json").read_text())["version"])


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)


def _lines(command: list[object], folder: Path, environment: Mapping[str, str]) -> Iterator[Row]:
    """Run the checks of a process, and yield the outcomes that it prints as lines of JSON."""
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        yield Row(**json.loads(line))
    if done.returncode != 0:
        yield Row("the checks", False, f"exit status {done.returncode}: {done.stderr[-400:]}")


if __name__ == "__main__":
    main()
