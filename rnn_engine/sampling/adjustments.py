"""Adjustments: changes of single tokens' logits before a draw, by bias, repetition penalties and rules.

They apply in this order:

1. The bias is added.
2. A recent token's logit is divided by `repeat_penalty` if it is positive, else multiplied by it.
3. The presence and frequency penalties are subtracted.
4. Each `TokenRule` adds to the logits of a few tokens, for the next draw alone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import I32, DrawBiases, DrawPenalties


class RecentTokens:
    """The last `size` tokens of a sequence, -1 for all, and how often each occurs among them."""

    def __init__(self, size: int, tokens: Sequence[int]) -> None:
        self.size = size
        kept = tokens if size < 0 else tokens[max(len(tokens) - size, 0) :]
        self._queue: deque[int] | None = None if size < 0 else deque(kept)
        self.counts = Counter(kept)

    def places(self, vocab_size: int) -> NDArray[np.uint32]:
        """Return the places [V] of tokens' last occurrences, from 1, or 0; with size -1, all that occur have 1."""
        places = np.zeros(vocab_size, np.uint32)
        if self._queue is None:
            places[np.fromiter(self.counts, np.intp, len(self.counts))] = 1
        else:
            for place, token in enumerate(self._queue, 1):
                places[token] = place
        return places

    def append(self, token: int) -> int | None:
        """Append a token, and drop the oldest beyond `size`; return that if it no longer occurs, else None."""
        self.counts[token] += 1
        if self._queue is None:
            return None
        self._queue.append(token)
        if len(self._queue) <= self.size:
            return None
        oldest = self._queue.popleft()
        self.counts[oldest] -= 1
        if self.counts[oldest]:
            return None
        del self.counts[oldest]
        return oldest


F64: TypeAlias = NDArray[np.float64]

NEVER = -1e30
"""A bias below every logit: such a token is drawn only if no other is left. It is finite, so that sums stay defined."""

_FIRST_ROOM = 64  # tokens
_LEAST_BIAS_ON_DEVICE = -1e4  # leaves a token no chance, while sums in f32 keep their precision
_LEAST_ON_DEVICE = 1e-30  # the least penalty of a token that has been seen, even long ago
_LEAST_SCALE = 1e-100  # once the scale is below it, it is multiplied into the penalties


class TokenRule(Protocol):
    """The protocol of a rule, such as DRY or bad words, that changes the logits of a few tokens in each draw."""

    def next(self) -> Mapping[int, float]:
        """Return a dict from token id to the number that the rule adds to the token's logit in the next draw."""

    def generated(self, token: int) -> None:
        """Update the rule, because `token` was generated."""


class Adjustments:
    """The changes of logits for one sequence, by bias, repetition penalties and rules, updated with each token.

    The penalties are ai00's: `presence` when a token is first seen, and `frequency` each time. Every token that is
    generated later multiplies all penalties by `decay`.
    `earlier` are tokens that count as seen before the first draw, oldest first. Each of them has `presence` once, and
    for each occurrence `frequency`, decayed by its distance from the last.

    `repeat_penalty` is llama-server's. It applies to the tokens among the last `repeat_last_n` of `prompt` and the
    generated text; -1 means all of them.
    """

    def __init__(
        self,
        vocab_size: int,
        bias: Mapping[int, float],
        presence: float,
        frequency: float,
        decay: float,
        earlier: Sequence[int] = (),
        *,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 0,
        prompt: Sequence[int] = (),
        rules: Sequence[TokenRule] = (),
    ) -> None:
        self.presence = presence
        self.frequency = frequency
        self.decay = decay
        self.penalises_sights = presence != 0.0 or frequency != 0.0
        self.repeat_penalty = repeat_penalty
        self._recent = None if repeat_penalty == 1.0 or repeat_last_n == 0 else RecentTokens(repeat_last_n, prompt)
        self._rules = tuple(rules)
        self._ruled: list[int] = []  # tokens that the rules add to in the next draw
        self._size = 0  # A
        self._tokens: I32 = np.empty(_FIRST_ROOM, np.int32)  # [room]
        self._seen: set[int] = set()
        self._scale = 1.0  # of `_penalty`: decay to the power of the number of generated tokens
        # Arrays [V], indexed by token id; those that are not needed are empty.
        self._is_known: NDArray[np.bool_] = np.zeros(vocab_size if self.may_change or bias else 0, np.bool_)
        self._is_recent: NDArray[np.bool_] = np.zeros(vocab_size if self._recent else 0, np.bool_)
        self._bias: F64 = np.zeros(vocab_size if bias else 0)
        self._penalty: F64 = np.zeros(vocab_size if self.penalises_sights else 0)
        self._by_rules: F64 = np.zeros(vocab_size if rules else 0)
        self.num_biases = len(bias)
        self._begin(bias, earlier if self.penalises_sights else ())

    def _begin(self, bias: Mapping[int, float], earlier: Sequence[int]) -> None:
        """Record the biases and the penalties of `earlier` tokens in one pass, since many calls would take long."""
        if bias:
            biased = np.fromiter(bias, np.int32, len(bias))
            self._bias[biased] = np.maximum(np.fromiter(bias.values(), np.float64, len(bias)), NEVER)
            self._add(biased)
        if earlier:
            seen, places = np.unique(np.asarray(earlier, np.int32)[::-1], return_inverse=True)
            sights = self.frequency * np.power(self.decay, np.arange(len(earlier), dtype=np.float64))
            self._penalty[seen] = self.presence + np.bincount(places, sights, len(seen))
            self._seen.update(seen.tolist())
            self._add(seen)
        if self._recent is not None:
            recent = np.fromiter(self._recent.counts, np.int32, len(self._recent.counts))
            self._is_recent[recent] = True
            self._add(recent)

    def __len__(self) -> int:
        return self._size

    @property
    def may_change(self) -> bool:
        return self._size > 0 or self.penalises_sights or self._recent is not None or len(self._rules) > 0

    @property
    def has_rules(self) -> bool:
        return len(self._rules) > 0

    @property
    def penalises_repeats(self) -> bool:
        """True if `repeat_penalty` changes logits: it is not 1, and it looks at one token at least."""
        return self._recent is not None

    @property
    def penalises(self) -> bool:
        return self.penalises_sights or self._recent is not None

    def for_device(self) -> DrawPenalties:
        """Return the penalties so far, in a device's form, if a device can draw for the sequence; see `choose_cuts`."""
        earlier = None
        if self._seen:
            seen = np.fromiter(self._seen, np.int32, len(self._seen))
            earlier = np.zeros(len(self._penalty), np.float32)
            earlier[seen] = np.maximum(self._penalty[seen] * self._scale, _LEAST_ON_DEVICE)
        penalties = DrawPenalties(self.presence, self.frequency, self.decay if self.penalises_sights else 1.0, earlier)
        if self._recent is None:
            return penalties
        window = None if self._recent.size < 0 else self._recent.size
        seen_last = self._recent.places(len(self._is_recent))
        return replace(penalties, repeat=self.repeat_penalty, window=window, seen=seen_last)

    def biases_for_device(self) -> DrawBiases | None:
        """Return the sequence's logit biases in the form that a device needs, or None if there are none."""
        tokens = np.flatnonzero(self._bias).astype(np.int32)
        if len(tokens) == 0:
            return None
        return DrawBiases(tokens, np.maximum(self._bias[tokens], _LEAST_BIAS_ON_DEVICE).astype(np.float32))

    @property
    def tokens(self) -> I32:
        """The ids [A] of the tokens with an adjustment, in any order, until `generated` or `begin_draw`."""
        return self._tokens[: self._size]

    def others(self, ids: I32) -> I32:
        """Return the ids of the tokens that have an adjustment of their logit, except those in `ids`."""
        tokens, self._is_known[ids] = self.tokens, False
        others: I32 = tokens[self._is_known[tokens]]
        self._is_known[tokens] = True
        return others

    def added(self, tokens: I32, logits: F64) -> F64:
        """Return what bias, penalties and rules add to the model's `logits` of `tokens`."""
        if self._recent is None:
            return self._plain(tokens)
        biased = logits + self._bias[tokens] if len(self._bias) else logits
        biased = np.where(self._is_recent[tokens], self._scaled(biased), biased)
        with np.errstate(invalid="ignore"):  # a token that the model rules out stays ruled out
            added: F64 = biased - self._less(tokens) - logits
        np.copyto(added, 0.0, where=~np.isfinite(logits))
        return added

    def bound_added(self, tokens: I32, highest: float) -> F64:
        """Return bounds of what bias, penalties and rules add to `tokens` if the model's logits are at most `highest`.

        The array ends with a 0, for tokens that are not adjusted.

        If the positive values are added to the logit `highest`, they raise the tokens' mass at least as much as the
        adjustments do. The negative values lower it at least as much.
        """
        if highest == -np.inf:  # no adjustment brings back tokens that the model rules out
            return np.zeros(1)
        plain = self._plain(tokens)
        if self._recent is None:
            return np.concatenate((plain, (0.0,)))
        recent = self._is_recent[tokens]
        if self.repeat_penalty >= 1.0:  # lowers a logit, by no known amount
            gains: F64 = np.maximum(plain, 0.0)
        else:  # raises it, to at most what becomes of the highest
            bias = self._bias[tokens] if len(self._bias) else np.zeros(len(tokens))
            gains = np.logaddexp(0.0, self._scaled(highest + bias) - self._less(tokens) - highest)
        losses = np.full(int(recent.sum()), -np.inf)
        return np.concatenate((plain[~recent], gains[recent], losses, (0.0,)))

    def adjusted(self, ids: I32, logits: F64) -> F64:
        """Return the logits of the tokens `ids` after bias, penalties and rules. `logits` are those from the model."""
        return logits + self.added(ids, logits)

    def begin_draw(self) -> None:
        """Have each rule choose the tokens whose logits it changes in the next draw. Call this before each draw."""
        if not self._rules:
            return
        self._by_rules[self._ruled] = 0.0
        self._ruled.clear()
        for rule in self._rules:
            for token, value in rule.next().items():
                self._know(token)
                self._ruled.append(token)
                self._by_rules[token] = max(self._by_rules[token] + value, NEVER)

    def generated(self, token: int) -> None:
        """Record that `token` was generated: decay all penalties by one token, then add the penalty of `token`."""
        if self.penalises_sights:
            self._scale *= self.decay
            if self._scale < _LEAST_SCALE:
                self._penalty[self.tokens] *= self._scale
                self._scale = 1.0
            amount = self.frequency
            if token not in self._seen:
                self._seen.add(token)
                self._know(token)
                amount += self.presence
            amount /= self._scale
            self._penalty[token] += amount
        if self._recent is not None:
            gone = self._recent.append(token)
            if gone is not None:
                self._is_recent[gone] = False
            self._is_recent[token] = True
            self._know(token)
        for rule in self._rules:
            rule.generated(token)

    def _plain(self, tokens: I32) -> F64:
        """Return what bias, rules, and presence and frequency penalties together add to the logits of `tokens`."""
        less = self._less(tokens)
        return self._bias[tokens] - less if len(self._bias) else -less

    def _less(self, tokens: I32) -> F64:
        """Return what rules, and presence and frequency penalties, subtract from the logits of `tokens`."""
        less: F64 = self._penalty[tokens] * self._scale if self.penalises_sights else np.zeros(len(tokens))
        return less - self._by_rules[tokens] if self._rules else less

    def _scaled(self, logits: F64) -> F64:
        scaled: F64 = np.where(logits <= 0.0, logits * self.repeat_penalty, logits / self.repeat_penalty)
        return scaled

    def _know(self, token: int) -> None:
        if self._is_known[token]:
            return
        if self._size == len(self._tokens):
            self._tokens = np.append(self._tokens, np.empty(self._size, np.int32))
        self._is_known[token] = True
        self._tokens[self._size] = token
        self._size += 1

    def _add(self, tokens: I32) -> None:
        """Add `tokens`, which must be distinct, to the list of tokens that have an adjustment of their logit."""
        new = tokens[~self._is_known[tokens]]
        self._is_known[new] = True
        self._tokens = np.concatenate((self.tokens, new, np.empty(self._size + len(new) + _FIRST_ROOM, np.int32)))
        self._size += len(new)
