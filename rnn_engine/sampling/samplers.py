"""The rules and samplers of sequences, what makes them from parameters, and who draws: host or device."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rnn_engine.sampling.adjustments import F64, NEVER, Adjustments, TokenRule
from rnn_engine.sampling.chain import (
    ORDER,
    Chain,
    ChainStep,
    Cuts,
    LateAdjustments,
    MinP,
    MirostatV1,
    MirostatV2,
    Temperature,
    TopK,
    TopNSigma,
    TopP,
    TypicalP,
    Xtc,
)
from rnn_engine.sampling.params import Ai00Mirostat, Ai00Nucleus, Ai00Typical, Sampler, SamplingParams
from rnn_engine.sampling.ranking import Bounds, Ranking, Rest, SequenceContext, bound_powers, bound_rest, widen
from rnn_engine.types import DRAW_DECAYS, DRAW_PENALTIES, DRAW_REPEATS, DRAW_TEMPERATURES, I32, MOST_DRAW_BIASES

# Rules that penalise or forbid tokens: DRY against repetitions, bad words, and stop tokens that may not come yet.
#
# DRY penalises a token that would continue a repetition of n >= `allowed_length` tokens. Its logit loses
# `multiplier` * `base`^(n - `allowed_length`). The mathematics are llama.cpp's.
# A repetition does not reach across a breaker. A breaker counts wherever its text occurs, even if several tokens spell
# it. A token that holds a whole breaker is never penalised.


MOST_TOKENS = 4096  # that DRY looks at, since each costs time in every step
_LARGEST_LOG = 88.7228391  # of a penalty before `multiplier`


class Dry:
    """The DRY rule, which penalises tokens that continue a repetition within the last `last_n` of a text."""

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Sequence[str],
        tokens: Sequence[int],
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._multiplier = multiplier
        self._base = base
        self._allowed_length = allowed_length
        self._most_excess = int(_LARGEST_LOG / math.log(base)) if base > 1.000001 else 0
        self._window = MOST_TOKENS if last_n < 0 else min(last_n, MOST_TOKENS)
        self._breaks = _Breaks(breakers, token_bytes)
        self._tokens: I32 = np.zeros(2 * self._window + 1, np.int32)  # [room]
        self._repeated: I32 = np.zeros(2 * self._window + 1, np.int32)  # [room] how many tokens up to it repeat the end
        self._size = 0
        for token in tokens[max(len(tokens) - self._window, 0) :]:
            self.generated(token)

    def next(self) -> Mapping[int, float]:
        """Return the penalties, negative numbers by token id, of the tokens that would continue a repetition."""
        first = max(self._size - self._window, 0)
        count = self._size - first
        limit = min(self._breaks.tokens_since, count)
        if count <= self._allowed_length or limit < self._allowed_length:
            return {}
        lengths = np.minimum(self._repeated[first : self._size - 1], np.arange(1, count))
        lengths = np.minimum(lengths, limit)
        places = np.flatnonzero(lengths >= self._allowed_length)
        places = places[np.argsort(lengths[places], kind="stable")]  # of a token's repetitions the longest counts
        following = self._tokens[first + 1 + places].tolist()
        longest = dict(zip(following, lengths[places].tolist(), strict=True))
        return {token: self._change(length) for token, length in longest.items() if not self._breaks.holds(token)}

    def generated(self, token: int) -> None:
        self._breaks.generated(token)
        if self._size == len(self._tokens):
            kept = slice(self._size - self._window, self._size)
            self._tokens[: self._window] = self._tokens[kept]
            self._repeated[: self._window] = self._repeated[kept]
            self._size = self._window
        size = self._size
        longer = np.ones(size, np.int32)
        longer[1:] += self._repeated[: max(size - 1, 0)]
        self._repeated[:size] = longer * (self._tokens[:size] == token)
        self._tokens[size] = token
        self._size += 1

    def _change(self, length: int) -> float:
        excess = length - self._allowed_length
        if self._most_excess > 0:
            excess = min(excess, self._most_excess)
        return -self._multiplier * self._base**excess


class _Breaks:
    """Counts the tokens of a sequence since the last breaker, a text across which DRY finds no repetition."""

    def __init__(self, breakers: Sequence[str], token_bytes: Callable[[int], bytes]) -> None:
        self._breakers = tuple(breaker.encode() for breaker in breakers)
        self._token_bytes = token_bytes
        self._reach = max(map(len, self._breakers), default=1) - 1  # bytes before a token that a breaker may begin in
        self._end = b""
        self._holds: dict[int, bool] = {}
        self.tokens_since = 0

    def holds(self, token: int) -> bool:
        """Return True if the bytes of `token` contain a whole breaker."""
        if token not in self._holds:
            data = self._token_bytes(token)
            self._holds[token] = any(breaker in data for breaker in self._breakers)
        return self._holds[token]

    def generated(self, token: int) -> None:
        self.tokens_since += 1
        if self._reach == 0:
            ended = self.holds(token)
        else:
            before, self._end = self._end, self._end + self._token_bytes(token)
            ended = any(
                self._end.find(breaker, max(len(before) - len(breaker) + 1, 0)) >= 0 for breaker in self._breakers
            )
            self._end = self._end[-self._reach :]
        if ended:
            self.tokens_since = 0


class BadWords:
    """Forbids the last token of each of `words` if the generated text ends with its other tokens."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._single = {word[0]: NEVER for word in words if len(word) == 1}
        self._longer: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for word in words:
            if len(word) > 1:
                self._longer.setdefault(word[-2], []).append((tuple(word[:-1]), word[-1]))
        self._generated: deque[int] = deque(maxlen=max(map(len, words), default=1))

    def next(self) -> Mapping[int, float]:
        generated = tuple(self._generated)
        words = self._longer.get(generated[-1], ()) if generated else ()
        forbidden = {last: NEVER for beginning, last in words if generated[-len(beginning) :] == beginning}
        return {**self._single, **forbidden} if forbidden else self._single

    def generated(self, token: int) -> None:
        self._generated.append(token)


class NotBefore:
    """The rule that forbids certain tokens, such as stop tokens, until `count` tokens have been generated."""

    def __init__(self, tokens: Sequence[int], count: int) -> None:
        self._values = dict.fromkeys(tokens, NEVER)
        self._left = count

    def next(self) -> Mapping[int, float]:
        return self._values if self._left > 0 else {}

    def generated(self, token: int) -> None:  # noqa: ARG002
        self._left -= 1


class Greedy:
    """The sampler that always chooses the likeliest token; of equally likely ones, that with the lowest id."""

    cuts = Cuts(top_k=1, top_p=0.0, min_p=None, temperature=1.0)
    num_uniforms = 0
    whole_row = False
    selection = None

    def draw(self, ranking: Ranking, uniforms: Sequence[float]) -> int | None:  # noqa: ARG002
        return 0 if len(ranking.ids) else None

    def drawn(self, ranking: Ranking, index: int) -> None:
        """Ignore the token that was drawn, because this sampler has no state."""


# Top-k, top-p and temperature, on a ranking that may be certain in its first part only.
#
# Nucleus sampling is from Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), section 3.1. As in
# ai00, the kept probabilities are raised to 1 / temperature after the cut, not before it.
#
# Every quantity that depends on the uncertain rest is carried as a pair of bounds. If both bounds lead to the same
# token, the whole row would lead to it too, and it is drawn. Otherwise the draw is not settled.


class Nucleus:
    """The sampler for top-k and top-p: it keeps the `top_k` likeliest tokens, and of these a mass of about `top_p`.

    A `top_k` of 0 keeps all. A token is kept if the tokens before it have at most `top_p` of the whole mass.

    It draws a kept token with a chance in proportion to p^(1 / temperature). `temperature` must be greater than 0.
    """

    num_uniforms = 1
    whole_row = False
    selection = None

    def __init__(self, top_p: float, top_k: int, temperature: float) -> None:
        self.top_p = top_p
        self.top_k = top_k
        self.temperature = temperature
        self.cuts = Cuts(top_k, top_p, None, temperature)

    def draw(self, ranking: Ranking, uniforms: Sequence[float]) -> int | None:
        size = len(ranking.ids)
        if size == 0:
            return None
        scaled = ranking.logits - ranking.logits[0]
        mass: F64 = np.exp(scaled).cumsum()  # [S]
        weight = mass if self.temperature == 1.0 else _weigh(scaled, self.temperature)
        if ranking.rest is None:
            kept = self._count_kept(mass, mass.item(-1), size)
            return int(weight.searchsorted(uniforms[0] * weight.item(kept - 1), side="right"))
        least, most = self._bound_weight(ranking, ranking.rest, mass, weight)
        index = int(weight.searchsorted(uniforms[0] * least, side="right"))
        if index == size or (most != least and index != weight.searchsorted(uniforms[0] * most, side="right")):
            return None
        return index

    def drawn(self, ranking: Ranking, index: int) -> None:
        """Ignore the token that was drawn, because this sampler has no state."""

    def _bound_weight(self, ranking: Ranking, rest: Rest, mass: F64, weight: F64) -> Bounds:
        """Return bounds of the sum of p^(1 / temperature) over the probabilities p of the tokens that are kept."""
        size, ranked = len(mass), mass.item(-1)
        outside = bound_rest(ranking, ranked)
        total = widen((ranked + outside[0], ranked + outside[1]))
        fewest, greatest = (self._count_kept(mass, bound, size + rest.count) for bound in total)
        least, most = weight.item(min(fewest, size) - 1), weight.item(min(greatest, size) - 1)
        if greatest > size:
            weight_outside = self._bound_rest_weight(ranking, rest, ranked, outside, total)
            least += weight_outside[0] if fewest > size else 0.0
            most += weight_outside[1]
        return least, most

    def _count_kept(self, mass: F64, total: float, num_tokens: int) -> int:
        """Return how many tokens are kept if the mass is `total`; more than S if unranked ones are, too."""
        by_mass = 1 + int(mass.searchsorted(self.top_p * total, side="right"))
        return min(by_mass, self.top_k or num_tokens, num_tokens)

    def _bound_rest_weight(self, ranking: Ranking, rest: Rest, ranked: float, outside: Bounds, total: Bounds) -> Bounds:
        """Return bounds of the sum of p^(1 / temperature) of unranked tokens that are kept, one at least."""
        size = len(ranking.ids)
        count = min(rest.count, (self.top_k or size + rest.count) - size)
        ceiling = rest.ceiling - ranking.logits.item(0)
        one = math.exp(ceiling)
        least = max(min(outside[0] * count / rest.count, self.top_p * total[0] - ranked), 0.0)
        most = max(min(outside[1], count * one, self.top_p * total[1] + one - ranked), 0.0)
        return bound_powers((least, most), count, ceiling, self.temperature)


def _weigh(scaled: F64, temperature: float) -> F64:
    """Return the cumulative sums [S] of p^(1 / temperature), as multiples of the first, from `scaled` logits [S]."""
    with np.errstate(over="ignore"):  # a tiny temperature gives minus infinity, which is right
        weight: F64 = np.exp(scaled / temperature).cumsum()
    return weight


_ADJUSTING = ORDER[:2]  # the steps that change logits and remove no tokens


def make_sampler(params: SamplingParams, context: SequenceContext) -> Sampler:
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
        names = (ORDER if params.samplers is None else params.samplers)[len(_leading(params)) :]
        steps = (_make_step(params, context, name) for name in names)
        return Chain(tuple(step for step in steps if step is not None))
    return _nucleus(params.top_p, max(params.top_k, 0), params.temperature)


def make_adjustments(params: SamplingParams, context: SequenceContext) -> Adjustments:
    """Make the bias, penalties and rules that change a sequence's logits before its sampler draws, from `params`."""
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
    """Return which of penalties and DRY begin the steps in an order in which one `Adjustments` can apply them."""
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
    """Return an `Adjustments` with `bias`, `rules` and the steps `names`, which may be penalties and DRY."""
    if "dry" in names and params.dry_multiplier > 0.0 and params.dry_penalty_last_n != 0:
        dry = Dry(
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            params.dry_penalty_last_n,
            params.dry_sequence_breakers,
            context.prompt,
            context.token_bytes,
        )
        rules = (*rules, dry)
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


def _make_step(params: SamplingParams, context: SequenceContext, name: str) -> ChainStep | None:
    match name:
        case "top_n_sigma":
            return TopNSigma(params.top_n_sigma) if params.top_n_sigma > 0.0 else None
        case "top_k":
            return TopK(params.top_k) if params.top_k > 0 else None
        case "typ_p":
            return TypicalP(params.typical_p) if params.typical_p < 1.0 else None
        case "top_p":
            return TopP(params.top_p) if params.top_p < 1.0 else None
        case "min_p":
            return MinP(params.min_p) if params.min_p > 0.0 else None
        case "xtc":
            return Xtc(params.xtc_probability, params.xtc_threshold) if params.takes_likeliest_away else None
        case "temperature":
            if params.temperature == 1.0 and params.dynatemp_range <= 0.0:
                return None
            return Temperature(params.temperature, params.dynatemp_range, params.dynatemp_exponent)
    adjustments = _adjust(params, context, (name,), {}, ())
    return LateAdjustments(adjustments) if adjustments.may_change else None


def choose_cuts(sampler: Sampler, added: Adjustments) -> Cuts | None:
    """Return settings with which a device draws the same tokens as `sampler` after bias, penalties and rules `added`.

    None if there are none: the host then draws. It supports all parameters. If there are penalties, the device must
    also have room for them in the sequence's slot.
    What the device supports also depends on the request: it draws for none with a grammar, a thinking budget or a mix
    of states, and only as many log-probabilities as its runner returns.
    """
    repeat_penalty = added.repeat_penalty if added.penalises_repeats else 1.0
    decay = added.decay if added.penalises_sights else 1.0
    supports_added = (
        all(_fits(amount, DRAW_PENALTIES) for amount in (added.presence, added.frequency) if amount != 0.0)
        and (decay == 1.0 or _fits(decay, DRAW_DECAYS))
        and (repeat_penalty == 1.0 or _fits(repeat_penalty, DRAW_REPEATS))
        and added.num_biases <= MOST_DRAW_BIASES
        and not added.has_rules
    )
    cuts = sampler.cuts if isinstance(sampler, Greedy | Nucleus | Chain) else None
    return cuts if cuts is not None and supports_added and _fits(cuts.temperature, DRAW_TEMPERATURES) else None


def _fits(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]
