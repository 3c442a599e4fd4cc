"""Make the samplers and the adjustments that `SamplingParams` describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rnn_engine.sampling.adjustments import Adjustments, TokenRule
from rnn_engine.sampling.ai00 import Ai00Mirostat, Ai00Nucleus, Ai00Typical
from rnn_engine.sampling.chain import ORDER, Chain, LateAdjustments
from rnn_engine.sampling.context import SequenceContext
from rnn_engine.sampling.dry import Dry
from rnn_engine.sampling.forbidden import BadWords, NotBefore
from rnn_engine.sampling.greedy import Greedy
from rnn_engine.sampling.mirostat import MirostatV1, MirostatV2
from rnn_engine.sampling.nucleus import Nucleus
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.protocol import Sampler
from rnn_engine.sampling.steps import MinP, Step, Temperature, TopK, TopNSigma, TopP, TypicalP, Xtc

_ADJUSTING = ORDER[:2]  # the steps that change logits and take nothing away


def make_sampler(params: SamplingParams, context: SequenceContext) -> Sampler:
    """Return what chooses the tokens of one sequence."""
    if (own := params.make_sampler(context)) is not None:
        return own
    match params.sampler:
        case Ai00Mirostat(tau, rate):
            return Chain((), MirostatV2(tau, rate, ai00=True))
        case Ai00Typical(tau, top_k, temperature):
            return Chain((TypicalP(tau, top_k or None), Temperature(temperature)))
        case Ai00Nucleus(top_p, top_k, temperature):
            return _nucleus(top_p, top_k, temperature)
    if params.mirostat == 1:
        last = MirostatV1(params.mirostat_tau, params.mirostat_eta, context.vocab_size)
        return Chain((Temperature(params.temperature),), last)
    if params.mirostat == 2:
        return Chain((Temperature(params.temperature),), MirostatV2(params.mirostat_tau, params.mirostat_eta))
    if params.uses_chain:
        return Chain(tuple(_steps(params, context)))
    return _nucleus(params.top_p, max(params.top_k, 0), params.temperature)


def make_adjustments(params: SamplingParams, context: SequenceContext) -> Adjustments:
    """Return what is added to the logits before the sampler sees them."""
    bias = {token: value for token, value in params.logit_bias.items() if isinstance(token, int)}
    rules: list[TokenRule] = []
    if params.bad_words:
        rules.append(BadWords([word for word in params.bad_words if not isinstance(word, str)]))
    if context.min_tokens > 0:
        rules.append(NotBefore(context.stop_tokens, context.min_tokens))
    if params.sampler is not None:
        choice = params.sampler
        penalties = choice.presence_penalty, choice.frequency_penalty, choice.penalty_decay
        return Adjustments(context.vocab_size, bias, *penalties, context.earlier, rules=rules)
    leading = () if params.mirostat > 0 else _leading(params)
    return _adjust(params, context, leading, bias, rules)


def _nucleus(top_p: float, top_k: int, temperature: float) -> Sampler:
    return Greedy() if temperature == 0.0 else Nucleus(top_p, top_k, temperature)


def _leading(params: SamplingParams) -> Sequence[str]:
    """Return the adjusting steps at the beginning, as far as their order is that in which all is adjusted at once."""
    names = ORDER if params.samplers is None else params.samplers
    for beginning in (_ADJUSTING, _ADJUSTING[:1], _ADJUSTING[1:]):
        if tuple(names[: len(beginning)]) == beginning:
            return beginning
    return ()


def _adjust(
    params: SamplingParams,
    context: SequenceContext,
    names: Sequence[str],
    bias: Mapping[int, float],
    rules: Sequence[TokenRule],
) -> Adjustments:
    """Return `bias`, `rules` and the adjusting steps `names` as one."""
    if "dry" in names and _has_effect(params, "dry"):
        rules = (*rules, _dry(params, context))
    if "penalties" not in names:
        return Adjustments(context.vocab_size, bias, 0.0, 0.0, 1.0, rules=rules)
    return Adjustments(
        context.vocab_size,
        bias,
        params.presence_penalty,
        params.frequency_penalty,
        params.penalty_decay,
        context.earlier,
        repeat_penalty=params.repeat_penalty,
        repeat_last_n=params.repeat_last_n,
        prompt=context.prompt,
        rules=rules,
    )


def _dry(params: SamplingParams, context: SequenceContext) -> Dry:
    return Dry(
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        params.dry_penalty_last_n,
        params.dry_sequence_breakers,
        context.prompt,
        context.token_bytes,
    )


def _steps(params: SamplingParams, context: SequenceContext) -> Iterator[Step]:
    """Yield the steps that have an effect, in their order."""
    names = ORDER if params.samplers is None else params.samplers
    for name in names[len(_leading(params)) :]:
        if _has_effect(params, name):
            yield _step(params, context, name)


def _has_effect(params: SamplingParams, name: str) -> bool:
    repeats = params.repeat_penalty != 1.0 and params.repeat_last_n != 0
    effects = {
        "penalties": params.penalises_occurrence or repeats,
        "dry": params.dry_multiplier > 0.0 and params.dry_penalty_last_n != 0,
        "top_n_sigma": params.top_n_sigma > 0.0,
        "top_k": params.top_k > 0,
        "typ_p": params.typical_p < 1.0,
        "top_p": params.top_p < 1.0,
        "min_p": params.min_p > 0.0,
        "xtc": params.takes_likeliest_away,
        "temperature": params.temperature != 1.0 or params.dynatemp_range > 0.0,
    }
    return effects[name]


def _step(params: SamplingParams, context: SequenceContext, name: str) -> Step:
    match name:
        case "top_n_sigma":
            return TopNSigma(params.top_n_sigma)
        case "top_k":
            return TopK(params.top_k)
        case "typ_p":
            return TypicalP(params.typical_p)
        case "top_p":
            return TopP(params.top_p)
        case "min_p":
            return MinP(params.min_p)
        case "xtc":
            return Xtc(params.xtc_probability, params.xtc_threshold)
        case "temperature":
            return Temperature(params.temperature, params.dynatemp_range, params.dynatemp_exponent)
    return LateAdjustments(_adjust(params, context, (name,), {}, ()))
