"""The options that say from which states a text starts, and how several are mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click

from rnn_engine.cli.option_groups import option_group
from rnn_engine.cli.session import Session
from rnn_engine.loading.states import StateFile, StateSettings
from rnn_engine.requests import MixedState, StateMix
from rnn_engine.sampling.mixing import MixKind
from rnn_engine.types import InitialState
from states.frozen import NO_INITIAL_STATE


@dataclass(frozen=True, slots=True)
class Starts:
    """The states that one text starts from: none, which leaves it to the model file, or one, or several in a mix."""

    files: Sequence[Path | None] = ()  # None is a state of fill values
    weights: Sequence[float] = ()  # of each in the mix; none where there is no mix
    kind: MixKind = "log"

    @property
    def settings(self) -> StateSettings:
        """The settings of an engine that has the states, of which the first is the default."""
        if not self.files:
            return StateSettings()
        named = [StateFile(file, _name(place)) for place, file in enumerate(self.files) if file is not None]
        return StateSettings(named, default=NO_INITIAL_STATE if self.files[0] is None else _name(0))

    def mix(self, session: Session) -> StateMix | None:
        """Return the mix of the engine's default state with the further ones; None where there is none."""
        if not self.weights:
            return None
        others = [
            MixedState(self.weights[place], None if self.files[place] is None else _initial_state(session, place))
            for place in range(1, len(self.files))
        ]
        return StateMix(self.weights[0], others, self.kind)


def _name(place: int) -> str:
    return f"state {place}"


def _initial_state(session: Session, place: int) -> InitialState:
    return session.run(session.engine.states.get(_name(place))).frozen.for_request


def _parse(states: tuple[str, ...], mix: MixKind) -> Starts:
    parts = [_divide(text) for text in states]
    files = [None if file == NO_INITIAL_STATE else Path(file) for file, _ in parts]
    weights = [weight for _, weight in parts if weight is not None]
    if len(weights) != (len(parts) if len(parts) > 1 else 0):
        raise click.BadParameter(
            f"{' '.join(states)!r} is not allowed; expected one FILE, or several FILE:WEIGHT", param_hint="'--state'"
        )
    return Starts(files, weights, mix)


def _divide(text: str) -> tuple[str, float | None]:
    """Return the file and the weight, if it has one; a file's name may have colons too."""
    file, colon, weight = text.rpartition(":")
    try:
        return (file, float(weight)) if colon and file else (text, None)
    except ValueError:
        return text, None


mix_options = option_group(
    "States",
    _parse,
    click.option(
        "--state",
        "states",
        multiple=True,
        metavar="FILE[:WEIGHT]",
        help="Start from the state in this file, or `none`. Several with weights are mixed at each token.",
    ),
    click.option(
        "--mix",
        type=click.Choice(get_args(MixKind)),
        default="log",
        show_default=True,
        help="What of several states is mixed by the weights: log-probabilities or probabilities.",
    ),
)
