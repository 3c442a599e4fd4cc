"""How the set-up runs commands, also as root, and prints messages to the user.

Tests use a scripted shell in its place.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys


class SetupError(Exception):
    """The set-up can't continue. The message says what the user has to do."""


class Shell:
    """The interface to this machine: it runs commands, finds programs, and prints messages."""

    def say(self, message: str) -> None:
        print(f"setup: {message}", file=sys.stderr, flush=True)

    def has(self, program: str) -> bool:
        return shutil.which(program) is not None

    def run(self, *command: str, cwd: str | None = None) -> None:
        """Run a command. If it fails, print its output and raise SetupError; otherwise its output is dropped."""
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            print(done.stdout, file=sys.stderr, flush=True)
            raise SetupError(f"this command failed with status {done.returncode}: {' '.join(command)}")

    def read(self, *command: str) -> str | None:
        """Return a command's stdout, or None if it fails. Its stderr is dropped."""
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None

    @functools.cached_property
    def root_prefix(self) -> tuple[str, ...] | None:
        """The command words, such as sudo's, that run a command as root. None if that needs a password."""
        if os.geteuid() == 0:
            return ()
        if self.has("sudo") and self.read("sudo", "-n", "true") is not None:
            return ("sudo", "-n")
        return None

    def run_as_root(self, *command: str) -> None:
        """Run a command as root. Raises SetupError if it fails, or if becoming root needs a password."""
        if self.root_prefix is None:
            raise SetupError(f"root is needed to run: {' '.join(command)}")
        self.run(*self.root_prefix, *command)
