"""The parts from which the backward pass of a version's layers is built on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rnn_engine.backward.parameters import PairParameters, VectorParameters
from rnn_engine.forward.context import BuildContext
from rnn_engine.forward.stages import Stage
from rnn_engine.gpu import Buffer


@dataclass(frozen=True, slots=True)
class BackwardContext:
    """What a layer's backward stages share: the parts of its forward stages, and buffers of gradients.

    A document is a token run, and has the slot of its number. All layers share one buffer of states, `forward.states`,
    which holds the initial state of the layer that runs next in the slots of all documents.
    """

    forward: BuildContext
    dx: Buffer  # [T, D] f32, the gradient of the residual stream
    state_gradients: Buffer  # [documents, stride] f32 in the layout of `forward.state_layout`, side 0 of the shifts
    trains_shifts: bool  # if the gradients of the token shifts are wanted, too
    pairs: PairParameters | None = None  # that are trained in place of the state
    vectors: VectorParameters | None = None  # that are trained beside pairs

    @property
    def needs_first_inputs(self) -> bool:
        """True if the gradients of the inputs of the first layer's time mix are needed, too."""
        return self.trains_shifts or self.pairs is not None


@dataclass(frozen=True, slots=True)
class BackwardLayer:
    """The stages of one layer. Before `forward` and before `recompute`, the states are set to the initial state."""

    forward: tuple[Stage, ...]  # turns the layer's input in `x` into its output
    recompute: tuple[Stage, ...]  # from the input in `x`, which stays there, computes what `forward` has not kept
    backward: tuple[Stage, ...]  # turns the gradient of the output in `dx` into that of the input; `state_gradients`


LoadBackward: TypeAlias = Callable[[BackwardContext], Iterator[BackwardLayer]]
"""Uploads the layers of a model to the device one after another, and yields the stages of each.

The backward stages of the layers run from the last layer to the first.
"""
