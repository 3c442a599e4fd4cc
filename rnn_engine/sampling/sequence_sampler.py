"""The object that draws the tokens of one sequence. It owns the sampler, random numbers, penalties and bias.

If the candidates do not settle a draw, the whole row is read and the draw is made again with the same random numbers.
So the token depends on the row, the parameters and the seed, not on how many candidates a runner returns.

numpy's Philox does not do here: it multiplies words of 64 bits, which WGSL can't, and has one generator for each seed.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.sampling.adjustments import F64
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.ranking import NO_CONTEXT, LogitRow, Ranking, SequenceContext, rank, rank_all
from rnn_engine.sampling.samplers import choose_cuts, make_adjustments, make_sampler
from rnn_engine.types import DrawPenalties, TokenDraw

# Random numbers, computed from the seed and the token's place in the text alone: the same on the host and on a device.
#
# Philox4x32-10 is from Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011): ten rounds turn a key of
# 64 bits, here the seed, and a counter of 128 bits into four words. philox.wgsl is the same function.

_ROUNDS: Final = 10
_MULTIPLIERS: Final = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS: Final = np.arange(_ROUNDS, dtype=np.uint64)[:, np.newaxis, np.newaxis] * np.array(
    [[0x9E3779B9], [0xBB67AE85]], np.uint64
)
_WORD: Final = np.uint64(2**32 - 1)
_HALF: Final = np.uint64(32)


def philox(seeds: NDArray[np.uint64], counters: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return four random words [4, N], each below 2^32, by Philox from `seeds`, [N] or [1], and `counters` [4, N]."""
    keys = (np.stack((seeds & _WORD, seeds >> _HALF)) + _KEY_STEPS) & _WORD  # [_ROUNDS, 2, N]
    even, odd = counters[0::2].astype(np.uint64), counters[1::2].astype(np.uint64)
    for key in keys:
        products = even * _MULTIPLIERS
        even = products[::-1] >> _HALF
        even ^= odd
        even ^= key
        odd = products[::-1] & _WORD
    return np.stack((even[0], odd[0], even[1], odd[1]))


def uniforms(seeds: NDArray[np.uint64], tokens: NDArray[np.integer], kinds: NDArray[np.integer] | int = 0) -> F64:
    """Return N random numbers in [0, 1) of 53 bits, for places `tokens` and `kinds`; `seeds` is [N] or [1]."""
    counters = np.zeros((4, len(tokens)), np.uint32)
    counters[0] = tokens
    counters[1] = kinds
    words = philox(seeds, counters)
    numbers: F64 = ((words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))) * 2.0**-53
    return numbers


def uniforms_from(seed: int, first: int, count: int, num_kinds: int) -> list[float]:
    """Return `num_kinds` random numbers for each token, in one list: lists of lists would slow the collector."""
    places = np.repeat(np.arange(first, first + count), num_kinds)
    kinds = np.tile(np.arange(num_kinds), count)
    numbers: list[float] = uniforms(np.array([seed], np.uint64), places, kinds).tolist()
    return numbers


_AHEAD = 256  # tokens whose random numbers are made at once: 141 us, and 113 us for a quarter of them
WIDER = (1024, 8192)  # tokens of a whole row to rank before ranking all, since sorting fewer takes far less time


def random_seed() -> int:
    """Return an unpredictable seed below 2^53, which JSON readers that store numbers as doubles keep exactly."""
    return secrets.randbits(53)


@dataclass(slots=True)  # not frozen, which triples what making one costs: there is one a token
class Draw:
    """A drawn token and its natural-log probability in the model's distribution, before penalties, bias and mask."""

    token: int
    logprob: float


class SequenceSampler:
    """Draws the tokens of one sequence, in order. It also records those that a device draws for it."""

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        context: SequenceContext = NO_CONTEXT,
        note_whole_row: Callable[[], None] = lambda: None,
    ) -> None:
        """Start a text. `note_whole_row` is called each time that a whole row is read."""
        self._sampler = make_sampler(params, context)
        self.adjustments = make_adjustments(params, context)
        self._penalises = self.adjustments.penalises
        self._note_whole_row = note_whole_row
        self.seed = seed
        self.index = 0  # of the next token in the text: how many were drawn or given before it
        self._uniforms: list[float] = []  # random numbers of the tokens from `_first` on
        self._first = 0
        self.uncounted = array("I")  # tokens that a device has drawn, until `count_drawn`
        self._cuts = choose_cuts(self._sampler, self.adjustments)  # None if the host draws
        self._biases = None if self._cuts is None else self.adjustments.biases_for_device()
        self._on_device: DrawPenalties | None = None  # the penalties that the device applies
        self._num_on_device = 0  # how many tokens of the text are counted in these

    def draws_on_device(self, *, has_penalties: bool) -> bool:
        """Return True if a device can draw for this sequence, and apply its penalties if `has_penalties`."""
        return self._cuts is not None and (has_penalties or not self._penalises)

    def device_draw(self, count: int, halts: NDArray[np.uint32], ahead: int = 0) -> TokenDraw:
        """Return the request to draw `count` tokens, up to a stop token of `halts`, after `ahead` in flight."""
        assert self._cuts is not None, "a device does not draw what it can't"
        top_k, top_p, min_p, temperature = self._cuts
        draw = TokenDraw(self.seed, self.index + ahead, top_k, top_p, temperature, count, halts, min_p, self._biases)
        if self._penalises:
            if self._on_device is None or self.index > self._num_on_device + 1:
                self.count_drawn()
                self._on_device, self._num_on_device = self.adjustments.for_device(), self.index
            draw.penalties, draw.counts_input = self._on_device, self.index > self._num_on_device
            self._num_on_device = self.index
        return draw

    def drew_on_device(self, tokens: Sequence[int]) -> None:
        """Record as generated the `tokens` that a device has drawn for this sequence."""
        self.index += len(tokens)
        self._num_on_device += len(tokens)
        if self._penalises:
            self.uncounted.extend(tokens)

    def leave_device(self) -> None:
        """Record that the sequence gives up its slot, so that the next `device_draw` includes its penalties again."""
        self._on_device = None

    def count_drawn(self) -> None:
        """Update penalties and rules for tokens that a device has drawn. Needed only before draws on the host."""
        for token in self.uncounted:
            self.adjustments.generated(token)
        del self.uncounted[:]

    def draw(self, row: LogitRow) -> Draw:
        """Draw the sequence's next token from `row`, and record it as generated."""
        self.count_drawn()
        self.adjustments.begin_draw()
        first = self._find_uniforms()
        uniforms = self._uniforms[first : first + self._sampler.num_uniforms]
        for ranking in self._rankings(row):
            index = self._sampler.draw(ranking, uniforms)
            if index is not None:
                break
        else:
            raise AssertionError("a whole row settles every draw")
        token = ranking.ids.item(index)
        self.index += 1
        self.adjustments.generated(token)
        self._sampler.drawn(ranking, index)
        return Draw(token, ranking.raw.item(index) - row.logsumexp)

    def given(self, token: int) -> None:
        """Record as generated a token that was not drawn, such as one that a grammar forces."""
        self.count_drawn()
        self.index += 1
        self.adjustments.begin_draw()
        self.adjustments.generated(token)

    def _find_uniforms(self) -> int:
        """Return the index in `_uniforms` of the next draw's random numbers, making more if they are used up."""
        count = self._sampler.num_uniforms
        place = (self.index - self._first) * count
        if place >= len(self._uniforms) and count > 0:
            self._first, place = self.index, 0
            self._uniforms = uniforms_from(self.seed, self.index, _AHEAD, count)
        return place

    def _rankings(self, row: LogitRow) -> Iterator[Ranking]:
        """Yield rankings of `row` to draw from in turn: of its candidates, of more tokens, at last of all tokens."""
        complete, selection = len(row.ids) == row.num_allowed, self._sampler.selection
        if complete and selection is not None:
            yield rank_all(row.scattered(), row.mask, self.adjustments, selection)
            return
        if complete or not self._sampler.whole_row:
            yield rank(row, self.adjustments)
        if complete:
            return
        full = row.read_full()
        self._note_whole_row()
        if not self._sampler.whole_row:
            if len(self.adjustments):
                yield rank(row, self.adjustments, full)
            for count in WIDER:
                if len(row.ids) < count < row.num_allowed:
                    yield rank(row.widened(full, count), self.adjustments, full)
        yield rank_all(full, row.mask, self.adjustments, selection)
