"""The decision which of three ways draws a sequence's tokens: the host one by one, the host in arrays, or the device.

The host one by one (`SequenceSampler.draw`) supports all parameters. For a seed all three draw the same tokens.
`WHO_DRAWS` lists what the other two support. They also depend on the request: the device draws for none with a grammar,
a thinking budget or a mix of states, and only as many log-probabilities as its runner returns. The host draws in arrays
(`JointDraws`) with all of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rnn_engine.sampling.adjustments import Adjustments
from rnn_engine.sampling.chain import Chain, Cuts
from rnn_engine.sampling.params import Sampler
from rnn_engine.sampling.samplers import Greedy, Nucleus
from rnn_engine.types import DRAW_DECAYS, DRAW_PENALTIES, DRAW_REPEATS, DRAW_TEMPERATURES, MOST_DRAW_BIASES


@dataclass(frozen=True, slots=True)
class Capability:
    """A set of sampling parameters, and functions that return True if a faster way to draw supports their values.

    `together` is for `JointDraws` on the host, `device` for a device.
    """

    parameters: str
    together: Callable[[Sampler, Adjustments], bool]
    device: Callable[[Sampler, Adjustments], bool]


WHO_DRAWS: tuple[Capability, ...] = (
    Capability(
        "temperature, top_k, top_p; min_p and samplers; all other steps",
        together=lambda sampler, _: isinstance(sampler, Greedy | Nucleus),
        device=lambda sampler, _: _cut_fits(find_cuts(sampler)),
    ),
    Capability(
        "presence_penalty, frequency_penalty",
        together=lambda _, added: added.presence >= 0.0 and added.frequency >= 0.0,
        device=lambda _, added: all(
            amount == 0.0 or DRAW_PENALTIES[0] <= amount <= DRAW_PENALTIES[1]
            for amount in (added.presence, added.frequency)
        ),
    ),
    Capability(
        "penalty_decay",
        together=lambda *_: True,
        device=lambda _, added: not added.penalises_sights or DRAW_DECAYS[0] <= added.decay <= DRAW_DECAYS[1],
    ),
    Capability(
        "repeat_penalty, repeat_last_n",
        together=lambda _, added: not added.penalises_repeats,
        device=lambda _, added: (
            not added.penalises_repeats or DRAW_REPEATS[0] <= added.repeat_penalty <= DRAW_REPEATS[1]
        ),
    ),
    Capability(
        "logit_bias",
        together=lambda _, added: added.num_biases == 0,
        device=lambda _, added: added.num_biases <= MOST_DRAW_BIASES,
    ),
    Capability(
        "dry_multiplier, bad_words, min_tokens",
        together=lambda _, added: not added.has_rules,
        device=lambda _, added: not added.has_rules,
    ),
)


def draws_together(sampler: Sampler, added: Adjustments) -> bool:
    """Return True if `JointDraws`, which draws for many sequences at once, supports this sampler.

    `added` are the sequence's bias, penalties and rules, which must be supported, too.
    """
    return all(capability.together(sampler, added) for capability in WHO_DRAWS)


def draws_on_device(sampler: Sampler, added: Adjustments) -> bool:
    """Return True if a device supports this sampler, and the bias, penalties and rules `added`.

    If there are penalties, the device must also have room for them in the sequence's slot.
    """
    return all(capability.device(sampler, added) for capability in WHO_DRAWS)


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


def _cut_fits(cuts: Cuts | None) -> bool:
    return cuts is not None and DRAW_TEMPERATURES[0] <= cuts.temperature <= DRAW_TEMPERATURES[1]
