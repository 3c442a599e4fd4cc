"""Runs in flight of which only the device knows how far they come, and with them the sides of their slots' shifts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rnn_engine.draws import Drawn
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.slot_states import SlotStates
from rnn_engine.types import Batch, Ticket, TokenRun


class OpenRuns:
    """Tells `states` what is run. A run counts as having come to its end until the device says how far it came.

    So a run that follows can be submitted at once; it does nothing where the one before did not come to its end.
    """

    def __init__(self, states: SlotStates) -> None:
        self._states = states
        self._steps: dict[Ticket, dict[int, TokenRun]] = {}  # open ones by slot, of steps in flight, the oldest first
        self._followable: set[int] = set()  # slots whose last run has a draw

    def check(self, batch: Batch) -> None:
        """Raise InvalidRequestError for a run that follows nothing."""
        for position, run in enumerate(batch):
            if run.follows and run.slot not in self._followable:
                raise InvalidRequestError(f"run {position}: follows", True, "a slot whose last run has a draw")

    def add(self, ticket: Ticket, batch: Batch) -> None:
        """Note that `batch` was submitted."""
        self._steps[ticket] = {}
        for run in batch:
            if run.draw is None:
                self._states.advance(run.slot)
                self._followable.discard(run.slot)
                continue
            self._states.advance(run.slot, run.draw.count)
            self._followable.add(run.slot)
            if run.draw.count > 1 or run.follows:
                self._steps[ticket][run.slot] = run

    def close(self, ticket: Ticket, batch: Batch, drawn: Sequence[Drawn]) -> None:
        """Note what was drawn in the oldest step in flight, or nothing where it failed."""
        own = self._steps.pop(ticket)
        for run, one in zip(batch, drawn, strict=False):
            if run.slot in own:
                self._correct(run, one.num_run)
            if not one.goes_on:
                for later in self._steps.values():
                    if (follower := later.get(run.slot)) is not None and follower.follows:
                        self._correct(follower, 0)
                        del later[run.slot]

    def forget(self, slot: int) -> None:
        """Note that `slot` holds another state from now on."""
        self._followable.discard(slot)
        for step in self._steps.values():
            step.pop(slot, None)

    def any_in(self, slots: Iterable[int]) -> bool:
        """Whether the state that one of `slots` will hold is not known yet."""
        return any(slot in step for slot in slots for step in self._steps.values())

    def _correct(self, run: TokenRun, num_run: int) -> None:
        assert run.draw is not None
        self._states.advance(run.slot, run.draw.count - num_run)
