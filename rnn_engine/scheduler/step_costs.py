"""What steps have taken, by how many tokens they ran."""

from __future__ import annotations

from bisect import bisect_left

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)  # tokens; the last of each class
_LEAST_WEIGHT = 0.1  # of the latest value in a mean
_MOST_ABOVE = 3.0  # times the mean that a value counts for; more is a pause of the machine
_MEMORY = 4096  # steps after which a size that was not run is forgotten, as devices change their pace


class StepCosts:
    """Running means of the seconds of steps, in classes of like sizes."""

    def __init__(self) -> None:
        self._classes: dict[int, _Mean] = {}  # by the place in `_SIZES`, ascending
        self._num_noted = 0

    def note(self, tokens: int, seconds: float) -> None:
        """Count a step. The first one of a class is left out, for kernels and plans may have been made in it."""
        self._num_noted += 1
        which = bisect_left(_SIZES, tokens)
        mean = self._classes.get(which)
        if mean is None or self._num_noted - mean.noted > _MEMORY:
            self._classes[which] = _Mean(self._num_noted)
            self._classes = dict(sorted(self._classes.items()))
        else:
            mean.take(tokens, seconds, self._num_noted)

    def of(self, tokens: int) -> float | None:
        """Return what a step of so many tokens takes; None where none like it was measured."""
        mean = self._classes.get(bisect_left(_SIZES, tokens))
        return None if mean is None or mean.count == 0 else mean.seconds

    def beyond(self, smaller: int, seconds: float, tokens: int) -> float:
        """Return what a step of `tokens` takes, where one of `smaller` takes `seconds`.

        It is between what was measured of such sizes; beyond the greatest, as that one, so that greater ones are tried.
        """
        below = _Mean(0)
        below.tokens, below.seconds = smaller, seconds
        for mean in self._classes.values():
            if mean.count == 0 or mean.tokens <= smaller:
                continue
            if mean.tokens >= tokens:
                share = (tokens - below.tokens) / (mean.tokens - below.tokens)
                return below.seconds + share * (mean.seconds - below.seconds)
            below = mean
        return below.seconds


class _Mean:
    """The mean size and time of the steps of one class."""

    __slots__ = ("count", "noted", "seconds", "tokens")

    def __init__(self, noted: int) -> None:
        self.noted = noted  # the number of the step that was counted last
        self.count = 0
        self.tokens = 0.0
        self.seconds = 0.0

    def take(self, tokens: int, seconds: float, noted: int) -> None:
        self.noted = noted
        self.count += 1
        weight = max(1.0 / self.count, _LEAST_WEIGHT)
        if self.count > 1:
            seconds = min(seconds, _MOST_ABOVE * self.seconds)
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (seconds - self.seconds)
