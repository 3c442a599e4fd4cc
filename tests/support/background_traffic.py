"""Chats that come to a scheduler at a fixed interval, beside batches whose lines never end."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rnn_engine.requests import Client, Finished, GenerateRequest, SamplingParams, TextDelta
from rnn_engine.scheduler import Scheduler
from rnn_engine.types import Runner
from tools.bench.modelled import DeviceClock

CHATS, BATCH = Client("chats"), Client("batch", is_background=True)
_PROMPT, _ANSWER = 60, 32  # tokens of a chat


class Traffic:
    """Chats that come to a scheduler, and batches whose lines never end."""

    def __init__(self, runner: Runner, slots: int, clock: DeviceClock, batches: Sequence[Client] = ()) -> None:
        """Run requests in `slots` slots of `runner`, whose time is that of `clock`."""
        self.scheduler = Scheduler(runner, lambda _: b"?", num_slots=slots, clock=clock.now)
        self.firsts: list[float] = []  # seconds to the first token of each chat
        self.between: list[float] = []  # mean seconds between two tokens of each chat
        self.tokens = dict.fromkeys(batches, 0)  # of the lines of each batch that have ended
        self.lines = (5, 100), (8, 48)  # least and most tokens of a line's prompt and answer
        self._clock = clock
        self._vocab_size = runner.shape.vocab_size
        self._num_slots = slots
        self._random = Random(1)
        self._requests: dict[int, GenerateRequest] = {}
        self._arrived: dict[int, float] = {}  # of each request, like the next
        self._moments: dict[int, list[float]] = {}  # when its events with text came

    def run(self, seconds: float, every: float | None = None) -> None:
        """Run for `seconds`, in which a chat comes each `every` seconds, and until all chats have ended."""
        begun = self._clock.now()
        arrivals = [] if every is None else [begun + number * every for number in range(1, int(seconds / every))]
        while self._clock.now() < begun + seconds or self._count(CHATS):
            while arrivals and arrivals[0] <= self._clock.now():
                self._submit(CHATS, _PROMPT, _ANSWER, arrivals.pop(0))
            self._submit_lines()
            if not self.scheduler.is_due():
                self._clock.wait_until(arrivals[0] if arrivals else begun + seconds)
            else:
                self._step()

    def _submit_lines(self) -> None:
        """Have each batch again twice as many lines as there are slots."""
        for client in self.tokens:
            for _ in range(2 * self._num_slots - self._count(client)):
                prompt, answer = (self._random.randint(*least_and_most) for least_and_most in self.lines)
                self._submit(client, prompt, answer, self._clock.now())

    def _count(self, client: Client) -> int:
        return sum(request.client == client for request in self._requests.values())

    def _submit(self, client: Client, prompt: int, answer: int, arrived: float) -> None:
        key = len(self._arrived)
        tokens = self._random.choices(range(1, self._vocab_size), k=prompt)
        sampling = SamplingParams(temperature=0.0, seed=0)
        request = GenerateRequest(tokens, max_tokens=answer, stop_tokens=(), client=client, sampling=sampling)
        self._requests[key], self._arrived[key], self._moments[key] = request, arrived, []
        self.scheduler.submit(key, request, arrived)

    def _step(self) -> None:
        for delivery in self.scheduler.step():
            key, outcome = delivery.key, delivery.outcome
            if isinstance(outcome, Exception):
                raise outcome
            if isinstance(outcome, TextDelta):
                self._moments[key].append(self._clock.now())
            if isinstance(outcome, Finished):
                request, moments = self._requests.pop(key), self._moments.pop(key)
                if request.client == CHATS:
                    self.firsts.append(moments[0] - self._arrived[key])
                    self.between.append((moments[-1] - moments[0]) / (request.max_tokens - 1))
                else:
                    self.tokens[request.client] += len(request.prompt) + request.max_tokens
