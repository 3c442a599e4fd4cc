"""What a device is told to draw after a run of tokens, and what it has drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_DRAWS: Final = 16
"""Tokens of a sequence that a device draws in one submit, where nothing else limits them."""

DRAW_TEMPERATURES: Final = (0.01, 100.0)
"""The least and the greatest that a device draws with."""

DRAW_PENALTIES: Final = (1e-6, 100.0)
"""The least and the greatest presence or frequency penalty that a device takes off, but for 0."""

DRAW_DECAYS: Final = (0.1, 1.0)
"""The least and the greatest decay of penalties on a device."""

DRAW_REPEATS: Final = (1.0, 100.0)
"""The least and the greatest `DrawPenalties.repeat`; 1 changes nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawPenalties:
    """What a device takes off the logits of the tokens that a text has, as `rnn_engine.sampling.Adjustments` does.

    A device keeps the penalties in a sequence's slot, and counts each token that it draws. It begins anew, with
    `earlier`, where a draw comes with another object than the slot's draw before.
    """

    presence: float  # 0 or one of `DRAW_PENALTIES`, as is the next
    frequency: float
    decay: float  # one of `DRAW_DECAYS`
    earlier: NDArray[np.float32] | None = None  # [V] those at the beginning, none negative; None: none yet
    repeat: float = 1.0  # one of `DRAW_REPEATS`: what a recent token's logit is divided by, or multiplied with
    window: int | None = None  # how many of the latest tokens are recent; None: all
    seen: NDArray[np.uint32] | None = None  # [V] at which place each was seen last, from 1 on; 0, or None: not yet


MOST_DRAW_BIASES: Final = 64
"""Tokens to which a device adds a bias."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawBiases:
    """What a device adds to the logits of n tokens."""

    tokens: NDArray[np.int32]  # [n] that differ, at most `MOST_DRAW_BIASES`
    values: NDArray[np.float32]  # [n]


MOST_DRAW_LOGPROBS: Final = 20
"""Tokens whose log-probabilities a device tells with each that it draws."""


@dataclass(slots=True)
class TokenDraw:
    """How the device draws the tokens that follow a run, the first from the run's last row.

    It draws as `rnn_engine.sampling.Nucleus` does, or with `min_p` as a `Chain` of llama-server's top-k, top-p, min-p
    and temperature, by `rnn_engine.sampling.philox`, and so always the token that the host would draw. Every token but
    the last is run, in the same step, and the next one drawn from its row, until there are `count`, or one that `halts`
    says, or a row does not decide: see `Drawn`.
    """

    seed: int
    index: int  # of the first token in its text
    top_k: int  # 0 = all
    top_p: float
    temperature: float  # one of `DRAW_TEMPERATURES`
    count: int = 1
    halts: NDArray[np.uint32] | None = None  # [ceil(V / 32)] a bit for each token after which none is drawn
    min_p: float | None = None  # greater than 0
    biases: DrawBiases | None = None
    penalties: DrawPenalties | None = None
    counts_input: bool = False  # whether the last token of the run is to be counted: one that the device did not draw
    logprobs: int | None = None  # how many tokens to tell with each that is drawn, 0 being that one alone; None = none


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class TokenLogprobs:
    """Natural-log probabilities under the model, before penalties and bias: a token's own, and the likeliest ones."""

    own: float
    top: tuple[tuple[int, float], ...]  # (token, log-probability), likeliest first, equal ones by ascending id


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one for each run
class Drawn:
    """The tokens that the device has drawn after a run.

    Where it `is_settled`, all of them but the last one were run. Else all were, and the host is to draw from the row.
    Where it `goes_on`, a run that follows runs the last one. A run that follows another one does nothing, and its row
    means nothing; it has drawn no token then and is settled.
    """

    tokens: Sequence[int]
    is_settled: bool
    goes_on: bool = False
    logprobs: Sequence[TokenLogprobs] = ()  # of each token, where they are asked for

    @property
    def num_run(self) -> int:
        """How many tokens were run, that of the run included."""
        return 1 + len(self.tokens) - self.is_settled


NOTHING_DRAWN = Drawn((), is_settled=False)
