"""The process in which a tuning job checks its data and runs a `Tuner`: what it is asked, and what it answers.

It shares neither threads nor memory with the server, and has a lower priority. So it takes little time from requests
but that of the device, and whatever becomes of it, the server goes on. The order comes on standard input, and words of
the server after it. Each answer is one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TextIO, TypeAlias, get_args

import psutil
from pydantic import TypeAdapter

from rnn_engine.errors import DeviceMemoryError, InvalidRequestError, RnnEngineError
from rnn_engine.llm.tuner import Tuner
from rnn_engine.loading.chat_template import load_chat_template
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings, LoraSettings
from rnn_engine.loading.trainer import TrainerSize, plan_trainer
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.training.data import DataSettings, TextMaker, read_data
from rnn_engine.training.tuner import Judged, RateTried, TunerSettings, Updated

LEAST_EXAMPLES: Final = 10
LEAST_TOKENS: Final = 64  # of a call of the trainer, and so of an example
CHECKPOINT_SECONDS: Final = 10.0
_MOST_DOCUMENTS: Final = 8  # of a call of the trainer; with fewer, requests wait less for its end
_CHANGEABLE: Final = "the model, tokenizer and chat template as before"
_WAKE_SECONDS: Final = 5.0  # between wake-ups of a process that rests, so that the server sees that it does not hang
_LIFE_SECONDS: Final = 10.0  # without an answer, until the next look at a process; one that did nothing hangs
_MOST_LINE: Final = 1 << 20  # bytes of an answer
_NICENESS: Final = 5  # of the process, on systems that have that
_log = logging.getLogger(__name__)

Word: TypeAlias = Literal["busy", "idle", "go", "stop"]
"""What the server says: requests run, or none does; an answer was taken in; or the process must end."""


@dataclass(frozen=True, slots=True)
class TuningOrder:
    """What a process has to do: check the data of a job, tune a state, or train a LoRA."""

    model: Path
    loading: LoadSettings  # with the device on which the model runs
    training: Path
    validation: Path | None
    settings: TunerSettings
    max_tokens: int  # of an example; longer ones are cut
    share: float  # of the time that training may take while requests run
    checkpoint: Path  # from which the run goes on, if it is there
    output: Path  # to which states or LoRAs are written
    lora: LoraSettings | None = None  # None: a state is tuned


@dataclass(frozen=True, slots=True)
class Checked:
    """The data can be used: what is in it, and what is odd."""

    num_examples: int
    num_tokens: int
    num_learnt: int  # tokens that count in the loss
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Started:
    """The model is loaded, and training begins or goes on."""

    num_steps: int
    num_documents: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """The loss after `step` updates on the held-out part. Unless `step` is 0, the order's file has what was judged."""

    step: int
    held_out_loss: float
    rate: float  # the learning rate of the run


@dataclass(frozen=True, slots=True)
class Finished:
    """The run has ended, and the best state or LoRA is in the order's file."""

    best_step: int
    held_out_loss: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The process ends without a result."""

    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Stuck:
    """The process ends since a run that has begun can't go on here, such as because the model is another one."""

    message: str


Event: TypeAlias = Updated | RateTried | Judgement | Finished
"""What happens in a run. The process waits for the word `go` after each, so that no checkpoint is past it unnoted."""
Answer: TypeAlias = Checked | Started | Event | Failed | Stuck
_ANSWERS: Final[dict[str, TypeAdapter[Any]]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Answer)}


def encode_answer(answer: Answer) -> str:
    """Return an answer as a line."""
    return json.dumps([type(answer).__name__, asdict(answer)]) + "\n"


def parse_answer(line: bytes) -> Answer:
    """Return the answer of a line that `encode_answer` has made."""
    kind, fields = json.loads(line)
    answer: Answer = _ANSWERS[kind].validate_python(fields)
    return answer


def _activity(pid: int) -> object:
    """Return what changes while a process computes or waits for a device: its processor time and its wake-ups."""
    try:
        process = psutil.Process(pid)
        return process.cpu_times(), process.num_ctx_switches()
    except psutil.Error:  # it has ended
        return None


@dataclass(slots=True)
class TuningProcess:
    """A process of this module, as the server sees it."""

    _process: asyncio.subprocess.Process

    @classmethod
    async def start(cls, what: Literal["check", "tune"], order: TuningOrder) -> TuningProcess:
        """Start a process, and give it its order. Raises OSError."""
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rnn_engine_server.jobs.tuning_process", what),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            limit=_MOST_LINE,
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(order))
        return cls(process)

    def say(self, word: Word) -> None:
        """Send a word, unless the process has ended."""
        assert self._process.stdin is not None
        if self._process.returncode is None:
            self._process.stdin.write(f"{word}\n".encode())

    async def answers(self) -> AsyncIterator[Answer]:
        """Yield the answers of the process, until it has none any more. One that hangs is killed."""
        assert self._process.stdout is not None
        seen = None
        while True:
            try:
                line = await asyncio.wait_for(self._process.stdout.readline(), _LIFE_SECONDS)
            except TimeoutError:
                seen, before = _activity(self._process.pid), seen
                if seen is not None and seen == before:  # it has not ended
                    _log.warning("a process of a tuning job hangs, and is killed")
                    with suppress(ProcessLookupError):
                        self._process.kill()
                    return
                continue
            if not line:
                return
            yield parse_answer(line)

    async def end(self, seconds: float) -> None:
        """Have the process end, and kill it if that takes longer than some seconds."""
        self.say("stop")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


# What runs in the process.


class _StoppedError(Exception):
    """Raised to leave a run because the server has said so."""


class Server:
    """The server, as its process sees it."""

    def __init__(self, answers: TextIO, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._answers = answers
        self._share = share
        self._clock = clock
        self.idle = threading.Event()
        self.idle.set()
        self._go = threading.Semaphore(0)
        self._stopped = threading.Event()
        self._worked_since = self._clock()

    def send(self, answer: Answer) -> None:
        self._answers.write(encode_answer(answer))

    def send_and_wait(self, event: Event) -> None:
        """Send an event, and wait until the server has taken it in. Raises _StoppedError if the process must end."""
        self.send(event)
        began = self._clock()
        self._go.acquire()
        self._check()
        self._worked_since += self._clock() - began  # waiting is not work

    def begin_work(self) -> None:
        """Count the time from now on as work, of which `rest` leaves requests their share."""
        self._worked_since = self._clock()

    def rest(self) -> None:
        """While requests run, leave them the device for their share of the time since the last rest.

        Raises _StoppedError if the process must end.
        """
        now = self._clock()
        end = now + (now - self._worked_since) * (1 / self._share - 1) if self._share else math.inf
        while now < end and not self.idle.wait(min(_WAKE_SECONDS, end - now)):
            now = self._clock()
        self._check()
        self.begin_work()

    def listen(self, words: BinaryIO) -> None:
        """Take in the words of the server, on a thread of its own, and end the process when the server has gone."""
        for line in words:
            match line.decode().strip():
                case "busy":
                    self.idle.clear()
                case "idle":
                    self.idle.set()
                case "go":
                    self._go.release()
                case "stop":
                    self._stopped.set()
                    self.idle.set()
                    self._go.release()
        os._exit(1)  # the run goes on from its checkpoint when the server is there again

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError


def check_data(order: TuningOrder) -> Checked:
    """Read the data of a job. Raises InvalidRequestError, ModelError or TokenizerError if it can't be used."""
    loading = order.loading
    with open_model(order.model, tuple(loading.loras)) as opened:
        tokenizer = load_tokenizer(loading.tokenizer, order.model, opened.shape.vocab_size)
    maker = TextMaker(tokenizer, load_chat_template(loading.chat_template, order.model))
    settings = DataSettings(order.max_tokens, order.validation, order.settings.seed, bad_lines="skip", long_texts="cut")
    data = read_data(order.training, maker, settings)
    report = data.report
    for name, found in (("training_file", report), ("validation_file", data.held_out_report)):
        if found is not None and found.bad.count:
            message = f"the file has examples that can't be used: {found.bad}"
            raise InvalidRequestError(name, found.bad.count, "examples of a known form", message)
    if report.num_records < LEAST_EXAMPLES:
        message = f"the file has {report.num_records} examples; expected at least {LEAST_EXAMPLES}"
        raise InvalidRequestError("training_file", report.num_records, "more examples", message)
    odd = {
        f"examples with more than {order.max_tokens} tokens, of which only the beginning is learnt": report.long,
        "answers without a text, which are not learnt": report.empty,
        "examples with nothing to learn": report.idle,
        "examples that equal an earlier one": report.duplicates,
    }
    warnings = [f"{what}: {found}" for what, found in odd.items() if found.count]
    return Checked(report.num_records, report.num_tokens, report.num_learnt, warnings)


def tune(order: TuningOrder, server: Server) -> None:
    """Run the tuner to its end, from the checkpoint if there is one. Raises the errors of `Tuner`."""
    resume = order.checkpoint.exists()
    max_tokens = order.max_tokens if resume else _fitting_tokens(order)
    try:
        tuner = _make_tuner(order, server, max_tokens, resume=resume)
    except RnnEngineError as error:
        if not resume:
            raise
        thing = "room on the device" if isinstance(error, DeviceMemoryError) else _CHANGEABLE
        server.send(Stuck(f"{_describe(error, order)}; resume it when the server has {thing}, or cancel it"))
        return
    with closing(tuner):
        num_documents = len(tuner.data.training)
        server.send(Started(order.settings.num_steps(num_documents), num_documents, max_tokens))
        if resume and tuner.judged and tuner.judged[-1].step == tuner.progress.step:
            _report(tuner, tuner.judged[-1], order.output, server)  # the server may have ended before it took that in
        server.begin_work()
        for event in tuner.events():
            if isinstance(event, Judged):
                _report(tuner, event, order.output, server)
            else:
                server.send_and_wait(event)
        tuner.save(order.output)
        best = next(each for each in reversed(tuner.judged) if each.is_best)
        server.send_and_wait(Finished(best.step, best.held_out_loss))


def _make_tuner(order: TuningOrder, server: Server, max_tokens: int, *, resume: bool) -> Tuner:
    loading = order.loading
    return Tuner(
        order.training,
        order.model,
        order.settings,
        held_out=order.validation,
        long_texts="cut",
        lora=order.lora,
        max_tokens=max_tokens,
        max_documents=_MOST_DOCUMENTS,
        checkpoint=order.checkpoint,
        checkpoint_seconds=CHECKPOINT_SECONDS,
        resume=resume,
        device=loading.device,
        weights=loading.weights,
        device_memory=loading.device_memory,
        tokenizer=loading.tokenizer,
        chat_template=loading.chat_template,
        loras=loading.loras,
        v5_group_norm_epsilon=loading.v5_group_norm_epsilon,
        rest=server.rest,
    )


def _report(tuner: Tuner, judged: Judged, path: Path, server: Server) -> None:
    """Write what was judged, unless it is that of the start, and report the judgement."""
    assert tuner.rate is not None
    if judged.step > 0:
        tuner.save(path, best=False)
    server.send_and_wait(Judgement(judged.step, judged.held_out_loss, tuner.rate))


def _fitting_tokens(order: TuningOrder) -> int:
    """Return the most tokens of a call for which a trainer fits on the device: those of the order, or fewer.

    Raises DeviceMemoryError if not even `LEAST_TOKENS` fit.
    """
    loading, tokens = order.loading, order.max_tokens
    if loading.device == "cpu":
        return tokens
    with open_model(order.model, tuple(loading.loras)) as opened:
        while True:
            size = TrainerSize(tokens, _MOST_DOCUMENTS, lora=order.lora)
            try:
                plan_trainer(opened, loading.device, size, weights=loading.weights, device_memory=loading.device_memory)
            except DeviceMemoryError:
                if tokens // 2 < LEAST_TOKENS:
                    raise
                tokens //= 2
            else:
                return tokens


def _failure(error: RnnEngineError, order: TuningOrder) -> Failed:
    """Return what is wrong with a job, for its client."""
    message = _describe(error, order)
    if isinstance(error, InvalidRequestError) and error.field in ("data", "training_file", "validation_file"):
        is_other = error.field == "validation_file" or error.value == str(order.validation)
        param = "validation_file" if is_other else "training_file"
        return Failed(f"invalid_{param}", message, param)
    code = "insufficient_memory" if isinstance(error, DeviceMemoryError) else "training_failed"
    return Failed(code, message)


def _describe(error: RnnEngineError, order: TuningOrder) -> str:
    """Return the message of an error, with the ids of files in place of their paths."""
    message = str(error)
    for path in filter(None, (order.training, order.validation)):
        message = message.replace(str(path), path.stem)
    return message


def main(what: str) -> None:
    """Run the process. `what` is check or tune."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which then says `stop`
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # so that output of a library does not mix with the answers
    logging.basicConfig(level=logging.WARNING)
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    order: TuningOrder = pickle.load(sys.stdin.buffer)
    server = Server(answers, order.share)
    threading.Thread(target=server.listen, args=(sys.stdin.buffer,), daemon=True).start()
    try:
        if what == "check":
            server.send(check_data(order))
        else:
            tune(order, server)
    except _StoppedError:
        pass
    except RnnEngineError as error:
        server.send(_failure(error, order))
    except OSError as error:  # such as a full disk
        server.send(Stuck(str(error)) if what == "tune" else Failed("server_error", str(error)))
    except Exception:
        logging.exception("the process of a tuning job fails")
    answers.close()
    os._exit(0)  # the thread that listens can't be ended


if __name__ == "__main__":
    main(sys.argv[1])
