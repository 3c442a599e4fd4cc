"""A process of tuning jobs without a model: it answers as one whose losses fall, and keeps its step in a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rnn_engine.model.lora import write_lora
from rnn_engine.training.tuner import RateTried, Updated
from rnn_engine_server.jobs.tuning_process import (
    Answer,
    Checked,
    Failed,
    Finished,
    Judgement,
    Started,
    Stuck,
    TuningOrder,
    Word,
)
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.reading import LoadedState
from tests.support.fake_engine import state_after

STEPS = 8
JUDGED_EVERY = 2


@dataclass
class FakeProcesses:
    """Starts processes, and holds their runs at a step until the test releases them."""

    files: StateFiles
    hold: int | None = None  # the step before which runs wait
    last_step: int = STEPS  # of each run, which ends early if it is less than all steps
    die: Sequence[int] = ()  # the steps before which the first of the next processes end
    failure: Failed | Stuck | None = None  # what the next process answers
    held: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    started: list[FakeProcess] = field(default_factory=list)

    async def start(self, what: Literal["check", "tune"], order: TuningOrder) -> FakeProcess:
        self.started.append(FakeProcess(what, order, self))
        return self.started[-1]


@dataclass
class FakeProcess:
    """One process."""

    what: Literal["check", "tune"]
    order: TuningOrder
    all: FakeProcesses
    words: list[Word] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    has_ended: bool = False

    def say(self, word: Word) -> None:
        self.words.append(word)
        if word == "stop":
            self.stopped.set()

    async def answers(self) -> AsyncIterator[Answer]:
        if self.all.failure is not None:
            yield self.all.failure
        elif self.what == "check":
            yield Checked(20, 400, 300, ["answers without a text, which are not learnt: 1: line 3"])
        else:
            async for answer in self._tune():
                yield answer

    async def end(self, seconds: float) -> None:
        self.say("stop")
        self.has_ended = True

    async def _tune(self) -> AsyncIterator[Answer]:
        checkpoint = self.order.checkpoint
        first = int(checkpoint.read_text()) if checkpoint.exists() else 0
        last = next(iter(self.all.die), None)
        self.all.die = self.all.die[1:]
        yield Started(STEPS, 19, self.order.max_tokens)
        if first == 0:
            yield RateTried(0.1, 1.0)
            yield Judgement(0, 2.0, 0.1)
        for step in range(first + 1, self.all.last_step + 1):
            if step == last:
                return
            await self._wait(step)
            if self.stopped.is_set():
                return
            yield Updated(step, STEPS, None, 0.1, 2 / step, 1.0, 10)
            if step % JUDGED_EVERY == 0:
                self._save(step)
                yield Judgement(step, 3 / step, 0.1)
                assert self.words[-1] == "go"
                checkpoint.write_text(str(step))
        self._save(self.all.last_step)
        yield Finished(self.all.last_step, 3 / self.all.last_step)

    async def _wait(self, step: int) -> None:
        if step == self.all.hold:
            self.all.held.set()
            waits = [asyncio.create_task(event.wait()) for event in (self.all.release, self.stopped)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    def _save(self, step: int) -> None:
        files, path, lora = self.all.files, self.order.output, self.order.lora
        if lora is None or lora.train_state:
            files.save(path, "state", files.freeze(LoadedState("full", state_after([step])), "test"))
        else:
            write_lora(path, {"blocks.0.att.key.lora_A": np.full((lora.rank, 4), step, np.float32)}, lora.alpha, {})
