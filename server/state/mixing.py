"""Requests that mix states, put together from one request for each state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rnn_engine.requests import GenerateRequest, MixedState, StateMix
from server.schemas.state_ref import MixBody
from server.state.resolve import Start


def mix_calls(body: MixBody, starts: Sequence[Start], calls: Sequence[GenerateRequest]) -> GenerateRequest:
    """Return the first of `calls`, which are alike but for their prompts, as the mix of `starts` that `body` wants."""
    if body.weighted is None:
        return calls[0]
    others = [
        MixedState(start.weight, call.initial_state, call.prompt, call.turn_positions, call.checkpoint_positions)
        for start, call in zip(starts[1:], calls[1:], strict=True)
    ]
    return replace(calls[0], mix=StateMix(starts[0].weight, others, body.mix))
