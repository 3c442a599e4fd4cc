"""The server through which the tests share states: the distribution's Valkey or Redis."""

from __future__ import annotations

import shutil

from tools.setup.mesa import APT
from tools.setup.shell import SetupError, Shell

PROGRAMS = ("valkey-server", "redis-server")
PACKAGES = PROGRAMS  # the first that can be installed


def find_store() -> str:
    """Return the path of the server's program. Raises FileNotFoundError if it is not installed."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name)) is not None), None)
    if found is None:
        raise FileNotFoundError(f"no shared store is installed (as root: apt-get install {' or '.join(PACKAGES)})")
    return found


def see_to_store(shell: Shell) -> None:
    """Install a server if none is installed and apt may be used without a password; else print what to install.

    The server is not started: the tests start their own.
    """
    if any(shell.has(program) for program in PROGRAMS):
        return
    if shell.has("apt-get") and shell.root_prefix is not None:
        shell.say("no Valkey or Redis was found to test shared states with; installing one with apt")
        for package in PACKAGES:
            try:
                shell.run_as_root(*APT, "update")
                shell.run_as_root("env", "RUNLEVEL=1", *APT, "install", "--yes", "--no-install-recommends", package)
                return
            except SetupError as error:
                shell.say(f"that failed: {error}")
    shell.say(f"shared states are not tested: install Valkey or Redis (as root: apt-get install {PACKAGES[0]})")
