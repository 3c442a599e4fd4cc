"""Load the models of a server, and serve them over HTTP, with a log on standard error."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias

import click

from rnn_engine.cli.options import describe_shape
from rnn_engine.cli.serve import NamedModel, ServeOptions
from rnn_engine.cli.session import EngineChoice, with_demo_state
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward import Progress
from rnn_engine.interface import EngineInfo, EngineLike
from rnn_engine.loading.memory import in_words
from rnn_engine.loading.parts import freeze_modules
from rnn_engine.loading.runner import spare_slot_bytes
from rnn_engine.types import DeviceMemory
from rnn_engine_server.core.app import LoadEngine, LoadOrder, ModelRegistry, run
from rnn_engine_server.telemetry.logs import LogSettings, RequestIdFilter, make_formatter

# The log on standard error: a thread writes it, so that no request waits for its reader.

_STANDARD_ERROR = 2
_CAPACITY = 4096  # lines that wait to be written; those beyond are dropped
_CLOSING_SECONDS = 2.0  # for the lines that are left at the end
_DROPPED = "%d log lines were dropped, since standard error was not read"


class BackgroundHandler(logging.Handler):
    """Writes log lines to a file descriptor on a thread of its own; lines beyond `capacity` are dropped and counted."""

    def __init__(self, descriptor: int, capacity: int = _CAPACITY) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._capacity = capacity
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()  # None ends the thread
        self.dropped = 0  # since this was last logged
        self._thread = threading.Thread(target=self._write_lines, name="rnn-engine log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a log record to be written. Does not block: if the queue is full, the record is dropped and counted."""
        if self._lines.qsize() >= self._capacity:
            self.dropped += 1
            return
        try:
            self._lines.put(self._encode(record))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Wait until all log lines are written, and end the thread. Wait at most two seconds if nothing reads them."""
        self._lines.put(None)
        self._thread.join(_CLOSING_SECONDS)
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
            if dropped := self._take_dropped():
                record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, _DROPPED, (dropped,), None)
                self._write(self._encode(record))

    def _write(self, line: bytes) -> None:
        """Write a line, ignoring OSErrors: a thread hanging in `sys.stderr` would keep the interpreter from ending."""
        rest = memoryview(line)
        with suppress(OSError):  # nothing reads any more
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def _take_dropped(self) -> int:
        self.acquire()
        try:
            dropped, self.dropped = self.dropped, 0
        finally:
            self.release()
        return dropped

    def _encode(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")


@contextmanager
def log_on_stderr(settings: LogSettings) -> Iterator[None]:
    """Return a context manager that writes the log to standard error, with the format and level of `settings`."""
    handler = BackgroundHandler(_STANDARD_ERROR)
    handler.setFormatter(make_formatter(settings.format))
    handler.addFilter(RequestIdFilter())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()


LoadChoice: TypeAlias = Callable[[EngineChoice, Progress], Awaitable[EngineLike]]
"""Loads the model of a choice, in this process or in others, and reports its progress."""


def serve(load: LoadChoice, options: ServeOptions) -> None:
    """Load the models of `options`, each by calling `load`, and serve them over HTTP until a signal to stop."""
    freeze_modules()
    settings = options.settings
    with log_on_stderr(settings.logs):
        load_all = partial(load_models, _first_choice(options), options.models, options.default_model, load)
        run(load_all, settings, partial(_announce, has_keys=bool(settings.auth.keys)))


def _first_choice(options: ServeOptions) -> EngineChoice:
    model, limits = options.models[0].path, options.settings.limits
    return EngineChoice(
        model,
        options.loading,
        options.slots,
        cache=options.cache,
        states=with_demo_state(model, options.states),
        queue_seconds=limits.max_queue_seconds,
        max_queued=limits.max_queued,
        grammar_seconds=limits.max_grammar_seconds,
    )


async def load_models(
    choice: EngineChoice, models: Sequence[NamedModel], default: str | None, load: LoadChoice
) -> ModelRegistry:
    """Load all `models`, each by calling `load`; return their registry.

    LoRAs, states and the reranker of `choice` are for the first.

    `default` is the name of the model that answers requests without a model's name. Raises InvalidRequestError if there
    is no model called `default`.
    """
    names = [model.name for model in models]
    if default is not None and default not in names:
        there = ", ".join(names)
        message = f"--default-model: no model is called {default!r}; there are: {there}"
        raise InvalidRequestError("--default-model", default, f"one of {there}", message)
    first, *others = models
    states = choice.states
    orders = [
        LoadOrder(
            first.name,
            first.path,
            tuple(choice.loading.loras),
            tuple(states.files),
            states.default,
            reranker=choice.loading.reranker,
        ),
        *(LoadOrder(model.name, model.path) for model in others),
    ]

    def loader(order: LoadOrder) -> LoadEngine:
        return partial(load, _choose(choice, first.name, order))

    return await ModelRegistry.load(orders, default or first.name, loader)


def _choose(choice: EngineChoice, first: str, order: LoadOrder) -> EngineChoice:
    """Return the settings for `order`, adapted from those of the first model; others have folders of their own."""
    cache, folder = choice.cache, choice.states.folder
    if order.name != first:
        own = _folder_name(order.name)
        folder = None if folder is None else folder / own
        if cache is not None and cache.disk is not None:
            cache = replace(cache, disk=replace(cache.disk, folder=cache.disk.folder / own))
    return replace(
        choice,
        model=order.path,
        name=order.name,
        loading=order.adapt(choice.loading),
        cache=cache,
        states=replace(choice.states, files=order.states, default=order.default_state, folder=folder),
        slots=order.slots or choice.slots,
    )


def _folder_name(name: str) -> str:
    """Return the name of a folder for the model called `name`, in characters that all file systems allow."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return f"model-{safe}"


def _announce(infos: Sequence[EngineInfo], url: str, has_keys: bool) -> None:
    info = infos[0]
    key = " -H 'Authorization: Bearer KEY'" if has_keys else ""
    path, body = "chat/completions", '{"messages": [{"role": "user", "content": "Hello"}]}'
    if info.embedding is not None:
        path, body = "embeddings", '{"input": [[1, 2, 3]]}' if info.tokenizer == "none" else '{"input": "Hello"}'
    elif info.tokenizer == "none":
        path, body = "completions", '{"prompt": [1, 2, 3], "return_token_ids": true}'
    server = f"--unix-socket {url.removeprefix('unix:')} http://localhost" if url.startswith("unix:") else url
    lines = {
        "model": "\n         ".join(map(_describe_model, infos)),
        "device": f"{info.device}, {info.num_slots} slots",
        **({"memory": memory} if (memory := _describe_memory(infos)) else {}),
        "address": url,
        "try": f"curl {server}/v1/{path}{key} -d '{body}'",
    }
    for name, text in lines.items():
        click.echo(f"{name:8} {text}")


def _describe_model(info: EngineInfo) -> str:
    described = f"{info.model}: {describe_shape(info.shape)}; weights {info.weights}, tokenizer {info.tokenizer}"
    reranker = None if info.embedding is None else info.embedding.reranker
    return described if reranker is None else f"{described}, reranker {reranker}"


def _describe_memory(infos: Sequence[EngineInfo]) -> str:
    """Return the memory that models take on the device, by what it is for; "" if they run with numpy."""
    taken = [(each, each.device_memory) for each in infos if each.device_memory is not None]
    if not taken:
        return ""
    memory = DeviceMemory.sum(found for _, found in taken)
    slots = sum(each.num_slots * spare_slot_bytes(each.shape) for each, _ in taken)
    parts = {
        "weights": memory.weights,
        "states of the slots": slots,
        "kept states": memory.states - slots,
        "buffers": memory.buffers,
    }
    listed = ", ".join(f"{what} {in_words(num_bytes)}" for what, num_bytes in parts.items())
    return f"{in_words(memory.total)} on the device: {listed}"
