"""The tuner: its search for a rate, schedule, batches and judgements, and that a run goes on from anywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.backward import Optimizer, Trainer, TrainingDocument, TrainingState
from rnn_engine.errors import InvalidRequestError, StateError, StepError
from rnn_engine.training.checkpoint import load_checkpoint, save_checkpoint
from rnn_engine.training.data import DataReport, TrainingData
from rnn_engine.training.tuner import Event, Judged, RateTried, TunerSettings, Tuning, Updated
from rnn_engine.types import State
from tests.support.fake_trainer import FakeTrainer
from tests.support.models import random_model, tiny_shape
from tests.support.trainers import make_cpu_trainer

RUN = {"model": "abc", "data": "def"}


def document(*tokens: int) -> TrainingDocument:
    weights = np.ones(len(tokens), np.float32)
    weights[0] = 0
    return TrainingDocument(np.array(tokens, np.int32), weights)


def data(training: Sequence[TrainingDocument], held_out: Sequence[TrainingDocument]) -> TrainingData:
    return TrainingData(tuple(training), tuple(held_out), DataReport(), None, "")


FIVES = data([document(number % 3 + 4, 5, 5) for number in range(20)], [document(5, 5, 5, 5)])


def tuning(
    trainer: Trainer | None = None, settings: TunerSettings | None = None, documents: TrainingData = FIVES
) -> Tuning:
    trainer = trainer or FakeTrainer()
    return Tuning(trainer, documents, settings or TunerSettings(), trainer.shape.initial_state())


def same(one: State, two: State) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def test_a_search_finds_a_rate_and_the_run_lowers_the_held_out_loss() -> None:
    run = tuning()
    events = list(run.run())
    tried = [event for event in events if isinstance(event, RateTried)]
    assert [event.rate for event in tried[:4]] == [0.001, 0.01, 0.1, 1.0]
    assert run.rate == min(tried, key=lambda trial: trial.held_out_loss).rate
    rates = sorted(event.rate for event in tried)
    place = rates.index(run.rate)
    assert rates[place - 1 : place + 2] == pytest.approx([run.rate / math.sqrt(10), run.rate, run.rate * math.sqrt(10)])
    assert len(tried) <= 10
    judged = [event for event in events if isinstance(event, Judged)]
    assert judged[0].step == 0
    assert judged[0].held_out_loss == pytest.approx(0.25)
    best = min(judged, key=lambda judgement: judgement.held_out_loss)
    assert best.held_out_loss < 0.001
    assert np.abs(run.best["wkv"] - 0.5).max() < 0.05
    assert run.is_finished
    assert list(run.run()) == []


def test_each_trial_starts_anew() -> None:
    run = tuning()
    firsts = [event.loss for event in run.run() if isinstance(event, Updated) and event.step == 1]
    assert len(firsts) > 5
    assert len(set(firsts)) == 1


def test_a_rate_that_breaks_the_model_ends_its_trial() -> None:
    trainer = FakeTrainer(breaks_above=0.6)
    run = tuning(trainer)
    events = list(run.run())
    tried = {event.rate: event.held_out_loss for event in events if isinstance(event, RateTried)}
    assert tried[1.0] == math.inf
    assert run.rate is not None
    assert run.rate < 1
    assert all(np.isfinite(values).all() for values in run.best.values())


def test_no_useful_rate_is_an_error() -> None:
    trainer = FakeTrainer(breaks_above=1e-6)
    with pytest.raises(StepError, match="no learning rate gave a finite loss"):
        list(tuning(trainer).run())
    with pytest.raises(StepError, match="the gradient of 10 updates was not finite; expected a learning rate below"):
        list(tuning(trainer, TunerSettings(rate=0.1, steps=400, patience=None)).run())


def test_the_rate_rises_and_falls_along_a_cosine_to_a_tenth() -> None:
    trainer = FakeTrainer()
    list(tuning(trainer, TunerSettings(rate=0.5, steps=110, patience=None)).run())
    assert trainer.rates[:10] == pytest.approx([0.05 * number for number in range(1, 11)])
    assert trainer.rates[10] == pytest.approx(0.5)
    assert trainer.rates[60] == pytest.approx(0.275)
    assert trainer.rates[-1] == pytest.approx(0.05, rel=0.01)
    assert all(one >= two for one, two in zip(trainer.rates[10:], trainer.rates[11:], strict=False))


def test_every_epoch_has_all_documents_in_another_order() -> None:
    documents = data([document(number, number) for number in range(10)], [document(5, 5)])
    run = tuning(FakeTrainer(), TunerSettings(steps=10, batch_size=4, rate=0.1, seed=3), documents)
    places = [int(each.tokens[0]) for step in range(10) for each in run._batch(step)]
    epochs = [places[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_batch_is_divided_into_calls_and_weighted_as_a_whole() -> None:
    trainer = FakeTrainer(max_tokens=6, max_documents=3)
    documents = data([document(*[5] * length) for length in (2, 2, 2, 2, 7, 4, 4)], [document(5, 5)])
    run = tuning(trainer, TunerSettings(steps=1, batch_size=7, rate=0.1), documents)
    [_, updated, _] = run.run()
    assert isinstance(updated, Updated)
    assert updated.num_tokens == 16
    assert updated.loss == pytest.approx(0.25)
    assert sum(trainer.calls) == 7
    assert max(trainer.calls) <= 3


def test_a_run_ends_early_with_the_best_state() -> None:
    settings = TunerSettings(rate=0.05, steps=400, warm_up=0, patience=3)
    learnt = [document(20, 20)]  # leads away from what is held out
    few = tuning(FakeTrainer(), settings, data(learnt, [document(5, 5)] * 7))
    *_, last = few.run()
    assert isinstance(last, Judged)
    assert last.step == 400  # seven are too few to end a run by their loss
    run = tuning(FakeTrainer(), settings, data(learnt, [document(5, 5)] * 8))
    events = list(run.run())
    judged = [event for event in events if isinstance(event, Judged)]
    best = min(judged, key=lambda judgement: judgement.held_out_loss)
    assert judged[-1].step < 400
    assert judged.index(best) == len(judged) - 4
    assert np.abs(run.best["wkv"] - 0.5).max() < 1 < run.state["wkv"].max()


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (TunerSettings(), 100),
        (TunerSettings(batch_size=1), 300),
        (TunerSettings(epochs=2.5), 32),
        (TunerSettings(steps=7), 7),
    ],
)
def test_the_length_of_a_run(settings: TunerSettings, steps: int) -> None:
    assert settings.num_steps(100) == steps


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("epochs", 0.0, "a number greater than 0"),
        ("epochs", math.nan, "a number greater than 0"),
        ("rate", math.inf, "a finite number greater than 0"),
        ("rate", -1.0, "a finite number greater than 0"),
        ("steps", 0, "a whole number of at least 1"),
        ("batch_size", 0, "a whole number of at least 1"),
        ("warm_up", -1, "a whole number of at least 0"),
        ("patience", 0, "a whole number of at least 1"),
    ],
)
def test_settings_are_checked(name: str, value: float, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}: .* expected {words}"):
        replace(TunerSettings(), **{name: value})  # type: ignore[arg-type]


def test_a_document_longer_than_a_call_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="data: '8 tokens' is not allowed; expected at most 7 a document"):
        tuning(FakeTrainer(max_tokens=7), documents=data([document(*[5] * 9)], [document(5, 5)]))


def interrupted(
    path: Path, stops: Sequence[int], make: Trainer, settings: TunerSettings, documents: TrainingData
) -> Tuning:
    """Run with the same trainer made anew, going on from a checkpoint after each number of events in `stops`."""
    run = tuning(make, settings, documents)
    for stop in stops:
        list(islice(run.run(), stop))
        save_checkpoint(path, run.progress, RUN)
        list(islice(run.run(), 3))  # is lost
        run = tuning(make, settings, documents)
        run.resume(load_checkpoint(path, RUN))
    return run


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_goes_on_from_checkpoints_ends_as_an_undisturbed_one(tmp_path: Path, seed: int) -> None:
    settings = TunerSettings(seed=seed)
    whole = tuning(FakeTrainer(), settings)
    events: list[Event] = list(whole.run())
    stops = np.random.default_rng(seed).integers(0, len(events) // 8, 10).tolist()
    run = interrupted(tmp_path / "checkpoint", stops, FakeTrainer(), settings, FIVES)
    rest = list(run.run())
    assert rest == events[len(events) - len(rest) :]
    assert same(run.best, whole.best)
    assert same(run.state, whole.state)
    assert run.progress.updates == whole.progress.updates
    assert run.progress.judged == whole.progress.judged
    assert run.progress.tried == whole.progress.tried


def test_a_model_is_tuned_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    model = random_model(tiny_shape(layers=2, width=32, head_size=16, ffn=64, vocab=40), seed=7)
    documents = data([document(*[7, 3, number, 9, 9, 1]) for number in range(4)], [document(7, 3, 5, 9, 9, 1)])
    settings = TunerSettings(steps=24, batch_size=2, rate=0.05, patience=None)

    def make() -> Trainer:
        return make_cpu_trainer(model, optimizer=Optimizer(), trains_shifts=True, max_documents=2, max_tokens=10)

    whole = tuning(make(), settings, documents)
    judged = [event for event in whole.run() if isinstance(event, Judged)]
    assert judged[-1].held_out_loss < 0.5 * judged[0].held_out_loss
    run = tuning(make(), settings, documents)
    for stop in (5, 9):
        list(islice(run.run(), stop))
        save_checkpoint(tmp_path / "checkpoint", run.progress, RUN)
        run = tuning(make(), settings, documents)
        run.resume(load_checkpoint(tmp_path / "checkpoint", RUN))
    list(run.run())
    assert same(run.best, whole.best)
    assert same(run.state, whole.state)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    save_checkpoint(path, tuning().progress, RUN)
    with pytest.raises(StateError, match="belongs to a run with data 'def'; this one has 'xyz'"):
        load_checkpoint(path, {**RUN, "data": "xyz"})


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    save_checkpoint(path, tuning().progress, RUN)
    content = path.read_bytes()
    for place in range(0, len(content), len(content) // 40):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(StateError):
            load_checkpoint(path, RUN)
    path.write_bytes(content[:-1])
    with pytest.raises(StateError):
        load_checkpoint(path, RUN)


class Interrupted(FakeTrainer):
    """A trainer whose third `write` is interrupted."""

    writes = 0

    def write(self, state: TrainingState) -> None:
        self.writes += 1
        if self.writes == 3:
            raise KeyboardInterrupt
        super().write(state)


def test_ctrl_c_at_the_end_of_a_trial_changes_nothing() -> None:
    whole, run = tuning(), tuning(Interrupted())
    list(whole.run())
    with pytest.raises(KeyboardInterrupt):
        list(run.run())
    assert not run.progress.tried
    list(run.run())
    assert run.progress.tried == whole.progress.tried
    assert same(run.best, whole.best)
