"""Install programs of other projects that the tests need: a browser, gcc, a store that servers share, and Ray."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from tools.setup.environment import Environment
from tools.setup.mesa import APT
from tools.setup.shell import SetupError, Shell


@dataclass(frozen=True, slots=True)
class Program:
    """A program that the system's distribution has as a package, such as a browser."""

    name: str
    untested: str  # what is not tested without it
    commands: Sequence[str]  # any of these will do
    packages: Sequence[str]  # the first that can be installed is

    def find(self) -> str:
        """Return the path of the installed program. Raises FileNotFoundError if it is not installed."""
        found = next((path for command in self.commands if (path := shutil.which(command)) is not None), None)
        if found is None:
            wanted = " or ".join(self.packages)
            raise FileNotFoundError(f"{self.name} is not installed (as root: apt-get install {wanted})")
        return found

    def see_to(self, shell: Shell) -> None:
        """Install the program if it is missing, but do not start it. If apt needs a password, print what to install."""
        if any(shell.has(command) for command in self.commands):
            return
        if shell.has("apt-get") and shell.root_prefix is not None:
            shell.say(f"{self.name} was not found; installing it with apt")
            for package in self.packages:
                try:
                    shell.run_as_root(*APT, "update")
                    shell.run_as_root("env", "RUNLEVEL=1", *APT, "install", "--yes", "--no-install-recommends", package)
                    return
                except SetupError as error:
                    shell.say(f"that failed: {error}")
        advice = f"install {self.name} (as root: apt-get install {self.packages[0]})"
        shell.say(f"{self.untested} not tested: {advice}")


_SERVERS = ("valkey-server", "redis-server")

BROWSER = Program("Chromium", "the web page is", ("chromium", "chromium-browser", "google-chrome"), ("chromium",))
COMPILER = Program("gcc", "lost GPUs are", ("gcc", "cc"), ("build-essential",))
STORE = Program("Valkey or Redis", "shared states are", _SERVERS, _SERVERS)


def see_to_fleet(environment: Environment, shell: Shell) -> None:
    """Install Ray. If pip can't install it, print that the tests that need Ray are skipped."""
    try:
        environment.ensure("fleet")
    except SetupError:
        shell.say("replicas on Ray Serve are not tested: pip could not install the extra fleet, see above")
