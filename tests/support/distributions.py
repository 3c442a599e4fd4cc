"""The packages that an installation of this project has: those that pyproject.toml asks for, and what these need."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def absent_modules(extras: Iterable[str] = ()) -> list[str]:
    """Return the importable names in this environment that an installation with these extras does not have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    present = {"rnn-engine"}
    _add(present, map(Requirement, wanted))
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if present.isdisjoint(canonicalize_name(owner) for owner in owners)
    )


def _add(present: set[str], requirements: Iterable[Requirement]) -> None:
    """Add the names of the required distributions, and of all that they need, to `present`."""
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name not in present:
            present.add(name)
            needs = map(Requirement, distribution(name).requires or ())
            extras = requirement.extras or {""}
            _add(present, (each for each in needs if any(_holds(each, extra) for extra in extras)))


def _holds(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
