"""Where the runs of one prompt end because its state is kept there: for itself, and for others that wait for it.

Knows positions; knows neither tokens nor slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from states.cache.inflight import Lead
from states.cache.policy import CheckpointPoint


class PromptCuts:
    """The cuts that have not been reached. They may become more while the prompt runs."""

    def __init__(self, own: Sequence[CheckpointPoint] = (), lead: Lead | None = None) -> None:
        """`own` are the prompt's; `lead` is the part of the prompt that others may wait for."""
        self.lead = lead
        shared = 0 if lead is None else lead.length
        self._own = [cut for cut in own if cut.position > shared]
        if lead is not None:
            lead.plan(cut for cut in own if cut.position <= shared)

    def next(self) -> CheckpointPoint | None:
        """The nearest."""
        shared = None if self.lead is None else self.lead.next_cut()
        return shared or min(self._own, key=lambda cut: cut.position, default=None)

    def passed(self, position: int) -> None:
        """The prompt has been run up to here, and what was to be kept up to here has been."""
        self._own = [cut for cut in self._own if cut.position > position]
        if self.lead is not None and self.lead.open:
            self.lead.advance(min(position, self.lead.length))
            if position >= self.lead.length:
                self.lead.close()

    def close(self) -> None:
        """The prompt is done, or will never be: nobody is to wait for it any longer. Idempotent."""
        if self.lead is not None:
            self.lead.close()
