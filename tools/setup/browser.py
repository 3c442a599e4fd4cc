"""The browser in which the web page is tested: the distribution's Chromium."""

from __future__ import annotations

import shutil

from tools.setup.mesa import APT
from tools.setup.shell import SetupError, Shell

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium"


def find_browser() -> str:
    """Return the path of Chromium. Raises FileNotFoundError if it is not installed."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name)) is not None), None)
    if found is None:
        raise FileNotFoundError(f"Chromium is not installed (as root: apt-get install {PACKAGE})")
    return found


def see_to_browser(shell: Shell) -> None:
    """Install Chromium if it is missing and apt may be used without a password; else print what to install."""
    if any(shell.has(program) for program in PROGRAMS):
        return
    if shell.has("apt-get") and shell.root_prefix is not None:
        shell.say(f"no browser was found to test the web page in; installing {PACKAGE} with apt")
        try:
            shell.run_as_root(*APT, "update")
            shell.run_as_root(*APT, "install", "--yes", "--no-install-recommends", PACKAGE)
            return
        except SetupError as error:
            shell.say(f"that failed: {error}")
    shell.say(f"the web page is not tested: install Chromium (as root: apt-get install {PACKAGE})")
