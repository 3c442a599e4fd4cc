"""The decision who draws a sequence's tokens, the host or the device.

The host (`SequenceSampler.draw`) supports all parameters. For a seed both draw the same tokens. What the
device supports also depends on the request: it draws for none with a grammar, a thinking budget or a mix of states, and
only as many log-probabilities as its runner returns.
"""

from __future__ import annotations

from rnn_engine.sampling.adjustments import Adjustments
from rnn_engine.sampling.chain import Chain, Cuts
from rnn_engine.sampling.params import Sampler
from rnn_engine.sampling.samplers import Greedy, Nucleus
from rnn_engine.types import DRAW_DECAYS, DRAW_PENALTIES, DRAW_REPEATS, DRAW_TEMPERATURES, MOST_DRAW_BIASES


def draws_on_device(sampler: Sampler, added: Adjustments) -> bool:
    """Return True if a device supports this sampler, and the bias, penalties and rules `added`.

    If there are penalties, the device must also have room for them in the sequence's slot.
    """
    cuts = find_cuts(sampler)
    repeat_penalty = added.repeat_penalty if added.penalises_repeats else 1.0
    decay = added.decay if added.penalises_sights else 1.0
    return (
        cuts is not None
        and _fits(cuts.temperature, DRAW_TEMPERATURES)
        and all(_fits(amount, DRAW_PENALTIES) for amount in (added.presence, added.frequency) if amount != 0.0)
        and (decay == 1.0 or _fits(decay, DRAW_DECAYS))
        and (repeat_penalty == 1.0 or _fits(repeat_penalty, DRAW_REPEATS))
        and added.num_biases <= MOST_DRAW_BIASES
        and not added.has_rules
    )


def find_cuts(sampler: Sampler) -> Cuts | None:
    """Return settings with which a device draws the same tokens as `sampler`; None if there are none."""
    match sampler:
        case Greedy() | Nucleus():
            return Cuts(sampler.top_k, sampler.top_p, None, sampler.temperature)
        case Chain():
            cuts = sampler.cuts
            if cuts is None or cuts.min_p is None:
                return None
            return cuts if cuts.temperature > 0.0 else cuts._replace(top_k=1, temperature=1.0)
    return None


def _fits(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]
