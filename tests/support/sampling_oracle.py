"""The oracle of the samplers: each from its published formula, over the whole row, in plain f64.

It uses only the names of parameters from `rnn_engine.sampling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from rnn_engine.sampling.params import Ai00Mirostat, Ai00Nucleus, Ai00Typical, SamplingParams

Logits: TypeAlias = dict[int, float]
"""What is left: token -> logit."""

ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")


@dataclass
class Oracle:
    """The oracle for one sequence. `distribution` returns the chances of the next token, `drawn` goes on by one."""

    params: SamplingParams
    vocab_size: int
    token_text: Callable[[int], str] = chr
    earlier: Sequence[int] = ()
    prompt: Sequence[int] = ()
    generated: list[int] = field(default_factory=list)
    nudge: float = 0.0  # moves the comparisons that rounding may tip
    mu: float = field(init=False)

    def __post_init__(self) -> None:
        choice = self.params.sampler
        self.mu = 2.0 * (choice.tau if isinstance(choice, Ai00Mirostat) else self.params.mirostat_tau)

    def distribution(self, row: Sequence[float], *, coin: bool) -> list[tuple[int, float]]:
        """Return pairs (token, chance) by descending logit. XTC is applied if `coin` is True."""
        logits = {token: float(logit) for token, logit in enumerate(row)}
        for token, bias in self.params.logit_bias.items():
            assert isinstance(token, int)
            logits[token] += bias
        left = self._left(logits, coin)
        chances = softmax(left)
        return [(token, chances[token]) for token in sorted(left, key=lambda token: (-left[token], token))]

    def drawn(self, token: int, chance: float) -> None:
        """Take `token` as the next one. It had the probability `chance`."""
        self.generated.append(token)
        surprise = -math.log2(chance)
        match self.params.sampler:
            case Ai00Mirostat(tau, rate):
                self.mu = min(self.mu - rate * (surprise - tau), 4.0 * tau)
            case None if self.params.mirostat:
                self.mu -= self.params.mirostat_eta * (surprise - self.params.mirostat_tau)

    def _left(self, logits: Logits, coin: bool) -> Logits:
        params = self.params
        match params.sampler:
            case Ai00Mirostat():
                return self._mirostat_2(logits, 1)
            case Ai00Typical(tau, top_k, temperature, presence, frequency, decay):
                left = self._typical(self._seen_less(logits, presence, frequency, decay), tau, top_k)
                return heat(left, temperature)
            case Ai00Nucleus(top_p, top_k, temperature, presence, frequency, decay):
                left = self._seen_less(logits, presence, frequency, decay)
                return self._nucleus(left, top_p, top_k, temperature)
        if params.mirostat:
            left = heat(logits, params.temperature)
            return self._mirostat_1(left) if params.mirostat == 1 else self._mirostat_2(left, 0)
        if not params.uses_chain:
            left = self._dry(self._penalties(logits))
            return self._nucleus(left, params.top_p, max(params.top_k, 0), params.temperature)
        for name in ORDER if params.samplers is None else params.samplers:
            logits = self._step(name, logits, coin)
        return logits

    def _step(self, name: str, left: Logits, coin: bool) -> Logits:
        params = self.params
        match name:
            case "penalties":
                return self._penalties(left)
            case "dry":
                return self._dry(left)
            case "top_n_sigma" if params.top_n_sigma > 0:
                mean = sum(left.values()) / len(left)
                sigma = math.sqrt(sum((logit - mean) ** 2 for logit in left.values()) / len(left))
                least = max(left.values()) - params.top_n_sigma * sigma + self.nudge
                return {token: logit for token, logit in left.items() if logit >= least} or first(left, 1)
            case "top_k" if params.top_k > 0:
                return first(left, params.top_k)
            case "typ_p" if params.typical_p < 1:
                return self._typical(left, params.typical_p, 0)
            case "top_p" if params.top_p < 1:
                return self._top_p(left)
            case "min_p" if params.min_p > 0:
                chances = softmax(left)
                least = params.min_p * max(chances.values()) * (1 + self.nudge)
                return {token: left[token] for token in left if chances[token] >= least} or first(left, 1)
            case "xtc" if coin and params.xtc_probability > 0 and params.xtc_threshold <= 0.5:
                return self._xtc(left)
            case "temperature":
                return heat(left, self._temperature(left))
        return left

    def _penalties(self, left: Logits) -> Logits:
        params = self.params
        seen = [*self.prompt, *self.generated]
        recent = seen if params.repeat_last_n < 0 else seen[len(seen) - min(params.repeat_last_n, len(seen)) :]
        scaled = {}
        for token, logit in left.items():
            by = params.repeat_penalty if token in recent else 1.0
            scaled[token] = logit * by if logit <= 0 else logit / by
        return self._seen_less(scaled, params.presence_penalty, params.frequency_penalty, params.penalty_decay)

    def _seen_less(self, left: Logits, presence: float, frequency: float, decay: float) -> Logits:
        penalties: dict[int, float] = {}
        for position, token in enumerate(self.earlier):
            distance = len(self.earlier) - 1 - position
            penalties[token] = penalties.get(token, presence) + frequency * decay**distance
        for token in self.generated:
            penalties = {other: penalty * decay for other, penalty in penalties.items()}
            penalties[token] = penalties.get(token, presence) + frequency
        return {token: logit - penalties.get(token, 0.0) for token, logit in left.items()}

    def _dry(self, left: Logits) -> Logits:
        params = self.params
        seen = [*self.prompt, *self.generated]
        size = params.dry_penalty_last_n if params.dry_penalty_last_n >= 0 else len(seen)
        seen = seen[len(seen) - min(size, len(seen)) :]
        breaks = [any(text in self.token_text(token) for text in params.dry_sequence_breakers) for token in seen]
        limit = breaks[::-1].index(True) if True in breaks else len(seen)
        lengths: dict[int, int] = {}
        for place in range(len(seen) - 1):
            length = 0
            while length < min(limit, place + 1) and seen[place - length] == seen[len(seen) - 1 - length]:
                length += 1
            lengths[seen[place + 1]] = max(lengths.get(seen[place + 1], 0), length)
        changed = dict(left)
        for token, length in lengths.items():
            is_breaker = any(text in self.token_text(token) for text in params.dry_sequence_breakers)
            repeats = length >= params.dry_allowed_length < len(seen) and params.dry_multiplier > 0
            if token in left and repeats and not is_breaker:
                changed[token] -= params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
        return changed

    def _nucleus(self, left: Logits, top_p: float, top_k: int, temperature: float) -> Logits:
        chances = softmax(left)
        kept: Logits = {}
        before = 0.0
        for token in first(left, top_k or len(left)):
            if kept and before > top_p + self.nudge:
                break
            kept[token] = left[token]
            before += chances[token]
        return heat(kept, temperature)

    def _top_p(self, left: Logits) -> Logits:
        chances = softmax(left)
        kept: Logits = {}
        mass = 0.0
        for token in first(left, len(left)):
            kept[token] = left[token]
            mass += chances[token]
            if mass >= self.params.top_p + self.nudge:
                break
        return kept

    def _typical(self, left: Logits, mass: float, most: int) -> Logits:
        chances = softmax(left)
        entropy = -sum(chance * math.log(chance) for chance in chances.values() if chance > 0)
        possible = [token for token in first(left, len(left)) if chances[token] > 0]
        distances = {token: abs(-math.log(chances[token]) - entropy) for token in possible}
        kept: Logits = {}
        before = 0.0
        for token in sorted(possible, key=distances.__getitem__)[: most or None]:
            if kept and before > mass + self.nudge:
                break
            kept[token] = left[token]
            before += chances[token]
        return kept

    def _xtc(self, left: Logits) -> Logits:
        chances = softmax(left)
        order = list(first(left, len(left)))
        above = [token for token in order if chances[token] >= self.params.xtc_threshold + self.nudge]
        return {token: left[token] for token in order[max(len(above) - 1, 0) :]}

    def _temperature(self, left: Logits) -> float:
        params = self.params
        if params.dynatemp_range == 0:
            return params.temperature
        if len(left) == 1:
            return 1.0
        chances = softmax(left).values()
        entropy = -sum(chance * math.log(chance) for chance in chances if chance > 0)
        least = max(params.temperature - params.dynatemp_range, 0.0)
        share = max(entropy, 0.0) / math.log(len(left))
        return least + (params.temperature + params.dynatemp_range - least) * math.pow(share, params.dynatemp_exponent)

    def _mirostat_1(self, left: Logits) -> Logits:
        logits = sorted(left.values(), reverse=True)[:100]
        pairs = [
            (math.log((place + 2) / (place + 1)), high - low) for place, (high, low) in enumerate(pairwise(logits))
        ]
        exponent = sum(step * fall for step, fall in pairs) / sum(step * step for step, _ in pairs)
        excess = exponent - 1
        count = (excess * 2**self.mu / (1 - self.vocab_size ** (-excess))) ** (1 / exponent)
        return first(left, max(int(count * (1 + self.nudge)), 1))

    def _mirostat_2(self, left: Logits, beyond: int) -> Logits:
        chances = softmax(left)
        within = sum(1 for chance in chances.values() if chance > 0 and -math.log2(chance) <= self.mu + self.nudge)
        return first(left, max(within + beyond, 1))


def softmax(left: Logits) -> dict[int, float]:
    greatest = max(left.values())
    masses = {token: math.exp(logit - greatest) for token, logit in left.items()}
    total = math.fsum(masses.values())
    return {token: mass / total for token, mass in masses.items()}


def first(left: Logits, count: int) -> Logits:
    """Return the `count` greatest logits, equal ones by ascending id."""
    return dict(sorted(left.items(), key=lambda one: (-one[1], one[0]))[:count])


def heat(left: Logits, temperature: float) -> Logits:
    if temperature == 0:
        return first(left, 1)
    return {token: logit / temperature for token, logit in left.items()}
