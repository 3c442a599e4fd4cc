"""Ray, with which the tests start replicas."""

from __future__ import annotations

from tools.setup.environment import Environment
from tools.setup.shell import SetupError, Shell


def see_to_fleet(environment: Environment, shell: Shell) -> None:
    """Install Ray; if pip can't, print that the tests with Ray are skipped."""
    try:
        environment.ensure("fleet")
    except SetupError:
        shell.say("replicas on Ray Serve are not tested: pip could not install the extra fleet, see above")
