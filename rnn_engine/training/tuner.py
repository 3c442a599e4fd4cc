"""Tune an initial state: the search for a learning rate, the updates with their schedule, and the best state so far.

`Tuning` runs from one event to the next, and between two events all that it has reached is a `Progress`. So it can be
left at any event, kept in a file, and gone on with; the result is the same.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.backward import Trainer, TrainingDocument, TrainingState
from rnn_engine.errors import InvalidRequestError, StepError
from rnn_engine.training.data import TrainingData
from rnn_engine.types import State

_FIRST_RATES: Final = (-6, -4, -2, 0)  # 0.001, 0.01, 0.1, 1: the number n stands for the rate 10 ** (n / 2)
_MOST_TRIALS: Final = 10  # of rates: after the first ones, the neighbours of the best one, until it is between two
_LEAST_UPDATES: Final = 100  # unless the user says how many
_SEARCH_SHARE: Final = 10  # of the run's updates, a trial of a rate has a tenth
_SEARCH_UPDATES: Final = (8, 32)  # but at least and at most so many
_SEARCH_DOCUMENTS: Final = 32  # of the held-out part, by which a trial is judged
_JUDGEMENTS: Final = 20  # of a run
_LEAST_TO_END: Final = 8  # held-out documents; by the loss of fewer, a run does not end early
_MOST_REFUSED: Final = 10  # updates one after another whose gradient is not finite


@dataclass(frozen=True, slots=True)
class TunerSettings:
    """The settings of a run: its length, its batches, its learning rate, and when it ends early."""

    epochs: float | None = None  # times that every document is learnt
    steps: int | None = None  # updates; None: as `epochs` says, or else 3 epochs, but at least 100 updates
    batch_size: int = 8  # documents of an update
    rate: float | None = None  # None: the best of a short search
    warm_up: int = 10  # updates in which the rate rises; then it falls along a cosine to a tenth
    patience: int | None = 5  # judgements without a better one that end the run; None: it never ends early
    seed: int = 0  # of the order of the documents

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a setting that is out of range."""
        if self.epochs is not None and self.steps is not None:
            raise InvalidRequestError("epochs", self.epochs, "null, since the number of steps is given")
        if self.epochs is not None and not 0 < self.epochs < 1e6:
            raise InvalidRequestError("epochs", self.epochs, "a number greater than 0")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise InvalidRequestError("rate", self.rate, "a finite number greater than 0")
        for name, least in (("steps", 1), ("batch_size", 1), ("warm_up", 0), ("patience", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidRequestError(name, value, f"a whole number of at least {least}")

    def num_steps(self, num_documents: int) -> int:
        """Return the number of updates of a run with `num_documents` documents to learn."""
        if self.steps is not None:
            return self.steps
        wanted = math.ceil((3 if self.epochs is None else self.epochs) * num_documents / self.batch_size)
        return max(wanted, _LEAST_UPDATES) if self.epochs is None else wanted


@dataclass(frozen=True, slots=True)
class Updated:
    """An update of the state, in the run or in the trial of a rate."""

    step: int  # updates so far, of the run or of the trial
    num_steps: int
    trial: int | None  # the number of the trial, from 1 on; None in the run
    rate: float
    loss: float  # mean over the tokens that count, in nats, before the update
    norm: float  # of the gradient; if it is not finite, the state has not changed
    num_tokens: int  # that the model has run


@dataclass(frozen=True, slots=True)
class RateTried:
    """The end of the trial of a learning rate."""

    rate: float
    held_out_loss: float  # infinite if the trial was of no use


@dataclass(frozen=True, slots=True)
class Judged:
    """The loss on the held-out documents after `step` updates of the run; at 0, that of the state at the start."""

    step: int
    held_out_loss: float  # mean over the tokens that count, in nats
    is_best: bool


Event: TypeAlias = Updated | RateTried | Judged


@dataclass(slots=True, eq=False)
class Progress:
    """All that a run has reached between two events."""

    start: State  # where each trial and the run begin
    training: TrainingState
    best: State
    step: int = 0  # updates of the present trial, or of the run
    tried: list[RateTried] = field(default_factory=list)
    updates: list[tuple[float, float, float]] = field(default_factory=list)  # loss, rate, norm of the run's updates
    judged: list[Judged] = field(default_factory=list)


def no_rest() -> None:
    """Default of `rest`: go on at once."""


class Tuning:
    """A run of a `Trainer` over documents. Iterate over `run` to let it go on."""

    def __init__(
        self,
        trainer: Trainer,
        data: TrainingData,
        settings: TunerSettings,
        start: State,
        rest: Callable[[], None] = no_rest,
    ) -> None:
        """Prepare a run that begins at the initial state `start`.

        `rest` is called after each call of the trainer, so that others may use the device meanwhile. An error that it
        raises interrupts the run. Raises InvalidRequestError if a document is longer than the trainer allows, or if
        `start` does not fit.
        """
        longest = max(document.num_inputs for document in (*data.training, *data.held_out))
        if longest > trainer.max_tokens:
            raise InvalidRequestError("data", f"{longest} tokens", f"at most {trainer.max_tokens} a document")
        self._trainer = trainer
        self._data = data
        self._settings = settings
        self._rest = rest
        self.num_steps = settings.num_steps(len(data.training))
        empty = trainer.read()
        zeros = {name: np.zeros_like(values) for name, values in empty.first.items()}
        self._begins = TrainingState(start, zeros, zeros, 0)
        self._progress = Progress(start, self._begins, start)
        trainer.write(self._begins)

    @property
    def progress(self) -> Progress:
        """What the run has reached, with copies of the trainer's arrays. `resume` takes it."""
        return replace(
            self._progress,
            training=self._trainer.read(),
            tried=list(self._progress.tried),
            updates=list(self._progress.updates),
            judged=list(self._progress.judged),
        )

    def resume(self, progress: Progress) -> None:
        """Go on from what an equal run has reached. Raises InvalidRequestError if it does not fit the trainer."""
        self._begins = replace(self._begins, state=progress.start)
        self._trainer.write(progress.training)
        self._progress = progress

    @property
    def state(self) -> State:
        return self._trainer.read().state

    @property
    def best(self) -> State:
        """The initial state with the least loss on the held-out documents so far; must not be changed."""
        return self._progress.best

    @property
    def rate(self) -> float | None:
        """The learning rate of the run; None while it is being searched for."""
        if self._settings.rate is not None:
            return self._settings.rate
        return None if self._next_rate() is not None else self._best_tried().rate

    @property
    def judged(self) -> Sequence[Judged]:
        return self._progress.judged

    @property
    def is_finished(self) -> bool:
        """True after the last update, or if the held-out loss, of enough documents, has not fallen for too long."""
        judged = self._progress.judged
        patience = self._settings.patience if len(self._data.held_out) >= _LEAST_TO_END else None
        if self.rate is None or not judged or judged[-1].step != self._progress.step:
            return False
        best = max(number for number, judgement in enumerate(judged) if judgement.is_best)
        is_late = patience is not None and len(judged) - 1 - best >= patience
        return is_late or self._progress.step >= self.num_steps

    def run(self) -> Iterator[Event]:
        """Let the run go on, and yield each event after it has happened.

        The iteration may be left at any event, and interrupted by Ctrl-C or `rest` at any moment; a later call goes on
        from there. Raises StepError if the gradient stays infinite, or if no learning rate was of use.
        """
        self._trainer.write(self._trainer.read())  # clears the gradient of an update that was interrupted
        while self.rate is None:
            yield self._try_rate()
        while not self.is_finished:
            yield self._judge() if self._is_judgement_due() else self._update(self._scheduled_rate(), self.num_steps)

    # The search: each trial starts anew.

    def _next_rate(self) -> float | None:
        """Return the rate of the present trial; None after the last."""
        tried = {round(2 * math.log10(trial.rate)): trial.held_out_loss for trial in self._progress.tried}
        if self._settings.rate is not None or len(tried) == _MOST_TRIALS:
            return None
        if len(tried) < len(_FIRST_RATES):
            return _rate(_FIRST_RATES[len(tried)])
        best = min(tried, key=lambda number: tried[number])
        return next((_rate(number) for number in (best + 1, best - 1) if number not in tried), None)

    def _best_tried(self) -> RateTried:
        best = min(self._progress.tried, key=lambda trial: trial.held_out_loss)
        if not math.isfinite(best.held_out_loss):
            raise StepError("no learning rate gave a finite loss on the held-out documents; expected a rate that does")
        return best

    def _try_rate(self) -> Updated | RateTried:
        """Make one update of the present trial, or end it."""
        rate = self._next_rate()
        assert rate is not None
        updates = self._progress.updates
        least, most = _SEARCH_UPDATES
        num_steps = min(max(self.num_steps // _SEARCH_SHARE, least), most)
        is_broken = bool(updates) and not math.isfinite(updates[-1][0] + updates[-1][2])
        if self._progress.step < num_steps and not is_broken:
            warm_up = max(1, min(self._settings.warm_up, num_steps // 2))
            return self._update(rate * min(1.0, (self._progress.step + 1) / warm_up), num_steps)
        loss = math.inf if is_broken else self._mean_loss(self._data.held_out[:_SEARCH_DOCUMENTS])
        trial = RateTried(rate, loss if math.isfinite(loss) else math.inf)
        with _uninterrupted():
            self._trainer.write(self._begins)
            self._progress.tried.append(trial)
            self._progress.step = 0
            updates.clear()
        return trial

    # The run.

    def _scheduled_rate(self) -> float:
        """Return the learning rate of the next update: it rises, and then falls along a cosine to a tenth."""
        step, warm_up, peak = self._progress.step, self._settings.warm_up, self.rate
        assert peak is not None
        if step < warm_up:
            return peak * (step + 1) / warm_up
        part = (step - warm_up) / max(1, self.num_steps - warm_up)
        return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * part)))

    def _is_judgement_due(self) -> bool:
        step, judged = self._progress.step, self._progress.judged
        if judged and judged[-1].step == step:
            return False
        return step % max(1, self.num_steps // _JUDGEMENTS) == 0 or step == self.num_steps

    def _judge(self) -> Judged:
        judged = self._progress.judged
        loss = self._mean_loss(self._data.held_out)
        if not judged and not math.isfinite(loss):
            raise StepError("the loss of the state at the start is not finite; expected a model and a state that fit")
        is_best = not judged or loss < min(judgement.held_out_loss for judgement in judged)
        if is_best:
            self._progress.best = self._trainer.read().state
        judged.append(Judged(self._progress.step, loss, is_best))
        return judged[-1]

    def _update(self, rate: float, num_steps: int) -> Updated:
        """Learn the next batch of documents."""
        progress = self._progress
        batch = self._batch(progress.step)
        total = _total_weight(batch)
        loss = self._sum(lambda call: self._trainer.accumulate(call, 1 / total), batch) / total
        with _uninterrupted():
            norm = self._trainer.update(rate)
            progress.step += 1
            progress.updates.append((loss, rate, norm))
        trial = len(progress.tried) + 1 if self.rate is None else None
        last = progress.updates[-_MOST_REFUSED:]
        if trial is None and len(last) == _MOST_REFUSED and not any(math.isfinite(norm) for _, _, norm in last):
            raise StepError(
                f"the gradient of {_MOST_REFUSED} updates was not finite; expected a learning rate below {rate:g}"
            )
        num_tokens = sum(document.num_inputs for document in batch)
        return Updated(progress.step, num_steps, trial, rate, loss, norm, num_tokens)

    def _batch(self, step: int) -> list[TrainingDocument]:
        """Return the documents of the update number `step`: each epoch has all documents in an order of its own."""
        documents, size = self._data.training, self._settings.batch_size
        places = range(step * size, (step + 1) * size)
        return [
            documents[_order(self._settings.seed, place // len(documents), len(documents))[place % len(documents)]]
            for place in places
        ]

    def _mean_loss(self, documents: Sequence[TrainingDocument]) -> float:
        return self._sum(self._trainer.loss, documents) / _total_weight(documents)

    def _sum(self, loss_of: Callable[[list[TrainingDocument]], float], documents: Sequence[TrainingDocument]) -> float:
        total = 0.0
        for call in self._calls(documents):
            total += loss_of(call)
            self._rest()
        return total

    def _calls(self, documents: Sequence[TrainingDocument]) -> Iterator[list[TrainingDocument]]:
        call: list[TrainingDocument] = []
        num_tokens = 0
        for document in documents:
            too_long = num_tokens + document.num_inputs > self._trainer.max_tokens
            if call and (too_long or len(call) == self._trainer.max_documents):
                yield call
                call, num_tokens = [], 0
            call.append(document)
            num_tokens += document.num_inputs
        if call:
            yield call


def _rate(number: int) -> float:
    return float(10 ** (number / 2))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended, if it is Python's usual KeyboardInterrupt."""
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if pressed:
            raise KeyboardInterrupt


@lru_cache(2)  # the present epoch, and the next one
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


def _total_weight(documents: Sequence[TrainingDocument]) -> float:
    return float(sum(document.weights.sum(dtype=np.float64) for document in documents))
