"""Which replica a request goes to. Knows neither Ray nor engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that takes requests."""

    name: str
    num_slots: int
    outstanding: int  # requests of this front that are there, running or queued

    @property
    def load(self) -> float:
        """How many requests there are for each slot."""
        return self.outstanding / self.num_slots


def choose_replica(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the fewest requests for each slot, the first of them in order."""
    return min(candidates, key=lambda candidate: candidate.load)
