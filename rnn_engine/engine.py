"""`Engine`, the project's Python API: it loads an RWKV model and generates text for many requests at once.

Its methods are for one event loop; the model runs on a thread of its own (`scheduler.Worker`). An event goes from that
thread into the request's own inbox. A request whose reader falls far behind is paused, and delays no other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ParamSpec, Self, TypeVar
from weakref import WeakMethod

from rnn_engine.bounds import MAX_QUEUED
from rnn_engine.errors import (
    EngineClosedError,
    InvalidRequestError,
    OverloadedError,
    RnnEngineError,
    StepError,
    TimeLimitError,
    UnavailableError,
    check_finite,
    check_token_ids,
    check_whole,
)
from rnn_engine.forward import Progress
from rnn_engine.grammar import GrammarCompiler, GrammarError, Vocabulary, start_after
from rnn_engine.hub import locate_model
from rnn_engine.interface import EngineInfo, EngineStats
from rnn_engine.loading.parts import EngineParts, open_parts
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.pauses import pause
from rnn_engine.requests import ANONYMOUS, Client, Event, Finished, GenerateRequest, Started
from rnn_engine.sampling.masks import ListedTokens, ThinkingMask
from rnn_engine.scheduler import Delivery, Inboxes, Questions, Scheduler, Worker
from rnn_engine.scheduler.inboxes import Admission
from rnn_engine.scheduler.worker import Watchdog, stack_of
from rnn_engine.telemetry import EngineCounters, Health, Outcome, RequestAccount, SlotUse
from rnn_engine.tokenizer import Tokenizer
from rnn_engine.types import F32, EmbeddingTask, State
from rnn_engine_states.cache.browse import CacheTree, SummaryChanges, TreeQuery, list_positions, make_tree
from rnn_engine_states.cache.cache import CacheUpkeep
from rnn_engine_states.cache.checkpoint import position_missing
from rnn_engine_states.cache.config import CacheConfig, CacheStats
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.named.store import StateStore
from rnn_engine_states.tokens import unpack


class RequestMasks:
    """Compiles requests' grammars to token masks (the tokens that may come next) on threads. For one event loop."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, seconds: float, note_seconds: Callable[[float], None]
    ) -> None:
        """Prepare to compile grammars, each within `seconds`; `note_seconds` is called with the time of each."""
        self._token_bytes = tokenizer.decode_bytes
        self._vocab_size = vocab_size
        vocabulary = partial(Vocabulary.of, tokenizer, vocab_size)
        self._grammars = GrammarCompiler(vocabulary, seconds, note_seconds=note_seconds)

    async def make(self, request: GenerateRequest) -> GenerateRequest:
        """Return a copy of `request` with a token mask in place of its grammar and its settings for thoughts.

        Raises InvalidRequestError if the grammar is wrong, UnavailableError if it could not be compiled for another
        reason, EngineClosedError if this was closed.
        """
        return self._with_thinking(await self._with_mask(request))

    def close(self) -> None:
        """Stop compiling grammars. Blocks until the one that is being compiled is done."""
        self._grammars.close()

    async def _with_mask(self, request: GenerateRequest) -> GenerateRequest:
        if (grammar := request.grammar) is None:
            return request
        if grammar.kind == "tokens":
            tokens = json.loads(grammar.text)
            check_token_ids(f"{grammar.field} token", tokens, self._vocab_size)
            return replace(request, grammar=None, token_mask=partial(ListedTokens, tokens, self._vocab_size))
        future = self._grammars.compile(grammar, request.cache_scope)  # else clients could guess what others use
        try:
            compiled = await asyncio.shield(asyncio.wrap_future(future))  # others may wait for it, too
        except GrammarError as error:
            raise grammar.refused(str(error), error.fault) from error
        except asyncio.CancelledError:
            if future.cancelled():
                raise EngineClosedError from None
            raise
        if request.grammar_prefix == 0:
            return replace(request, grammar=None, token_mask=compiled.start, left_out=compiled.left_out)
        start = partial(start_after, compiled, tuple(request.prompt[-request.grammar_prefix :]))
        try:
            begun = await asyncio.to_thread(start)
        except StepError as error:
            allowed = f"a number of tokens at the prompt's end that begin a text of the grammar: {error}"
            raise InvalidRequestError("grammar_prefix_tokens", request.grammar_prefix, allowed) from error
        return replace(request, grammar=None, token_mask=begun.copy, left_out=compiled.left_out)

    def _with_thinking(self, request: GenerateRequest) -> GenerateRequest:
        """Return a copy of `request` with a token mask that allows thoughts first and then applies its own mask."""
        if request.thinking is None:
            return request
        thoughts, answer, ends = request.thinking, request.token_mask, request.stop_tokens
        mask = partial(ThinkingMask, thoughts, self._token_bytes, self._vocab_size, answer, ends)
        return replace(request, thinking=None, token_mask=mask)


logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CLOSE_SECONDS = 60.0  # for the worker's last step and for what it writes at the end

_DEFAULT_SETTINGS = LoadSettings()
_DEFAULT_CACHE = CacheConfig()
_DEFAULT_STATES = StateSettings()


class Engine:
    """An `EngineLike` that owns one loaded model. Make it inside a running event loop."""

    def __init__(
        self,
        parts: EngineParts,
        *,
        max_queued: int = MAX_QUEUED,
        queue_seconds: float | None = None,
        grammar_seconds: float = 2.0,
    ) -> None:
        """Start an engine on a loaded model's `parts`, which `close` will close. For the other arguments see `load`."""
        self._tokenizer = parts.tokenizer
        self._info = parts.info
        self._loop = asyncio.get_running_loop()
        self._keys = itertools.count()
        self._inboxes = Inboxes(self._loop)
        self._closing = False
        self._ended = asyncio.Event()
        self._cache = parts.cache
        self._states = parts.states
        self._state_files = parts.own_states.files
        self._heads = parts.heads
        self._reranker = parts.reranker
        self._scheduler = Scheduler(
            parts.runner,
            self._tokenizer.decode_bytes,
            self._cache,
            self._info.num_slots,
            wake=_weakly(self._wake_worker),
            drafts=parts.drafts,
        )
        self._masks = RequestMasks(
            self._tokenizer,
            self._info.shape.vocab_size,
            grammar_seconds,
            note_seconds=self._scheduler.counters.grammar_compile_seconds.add,
        )
        self._admission = Admission(self._scheduler.capacity, max_queued)
        self._queue_seconds = queue_seconds
        self._worker = Worker(
            self._scheduler,
            self._inboxes.post,
            partial(_end, self._scheduler, parts, self._loop, _weakly(self._note_end)),
            parts.reopen,
        )
        self._questions = Questions(self._worker, self._loop)
        self._upkeep = None if self._cache is None else CacheUpkeep(self._cache, self._worker.call, self._loop)
        parts.own_states.on_forgotten(_weakly(self.forget_root))
        self._worker.start()
        self._watchdog = Watchdog(self._worker, self._loop, _weakly(self._note_stall))
        self._watchdog.start()

    @classmethod
    async def load(
        cls,
        model_path: str | Path,
        settings: LoadSettings = _DEFAULT_SETTINGS,
        *,
        name: str | None = None,
        num_slots: int = 8,
        max_queued: int = MAX_QUEUED,
        queue_seconds: float | None = None,
        grammar_seconds: float = 2.0,
        cache: CacheConfig | None = _DEFAULT_CACHE,
        states: StateSettings = _DEFAULT_STATES,
        progress: Progress = lambda *_: None,
    ) -> Self:
        """Load a model onto a device and return an engine that runs it. The event loop is not blocked meanwhile.

        `model_path` is a file, a Hugging Face folder, or the name of a model that was pulled. `name` is what clients
        call the model, else the file's name without its ending. `max_queued` requests may wait for a slot, each for
        `queue_seconds` at most (None: as long as it takes). Compiling a grammar may take `grammar_seconds` of the
        processor's time.

        `cache` says how much is kept of prompts and answers for requests that begin alike; None keeps nothing. `states`
        are those that requests may start from by name. `progress` is called on another thread.

        Raises ModelError, TokenizerError or DeviceError. Raises StateError if a state's file does not fit the model or
        the cache's folder can't be used. Raises InvalidRequestError for times that are negative or not finite.
        """
        check_whole("num_slots", num_slots, 1, 2**31 - 1)
        check_finite("queue_seconds", queue_seconds)
        check_finite("grammar_seconds", grammar_seconds)
        parts = await asyncio.to_thread(
            open_parts,
            locate_model(model_path),
            settings,
            name=name,
            num_slots=num_slots,
            cache=cache,
            states=states,
            progress=progress,
        )
        return cls(parts, max_queued=max_queued, queue_seconds=queue_seconds, grammar_seconds=grammar_seconds)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def states(self) -> StateStore:
        return self._states

    @property
    def state_files(self) -> StateFiles:
        return self._state_files

    def stats(self) -> EngineStats:
        active = min(self._scheduler.num_live, len(self._inboxes))
        return EngineStats(active, len(self._inboxes) - active)

    def slot_uses(self) -> Sequence[SlotUse]:
        return self._scheduler.slot_uses()

    def health(self) -> Health:
        if self._closing:
            return Health("closing", "the engine is stopping")
        health = self._worker.health
        has_ended = self._ended.is_set() and health.status != "failed"
        return Health("failed", "the worker has ended") if has_ended else health

    def counters(self) -> EngineCounters:
        return self._scheduler.counters

    def cache_stats(self) -> CacheStats | None:
        return None if self._cache is None else self._cache.stats()

    async def cache_tree(self, query: TreeQuery) -> CacheTree:
        cache = self._cache
        if cache is None:
            return CacheTree((), 0, truncated=False)
        listing = await self._ask(lambda: list_positions(cache.checkpoints(query.scope), cache.now(), query))
        return await asyncio.to_thread(make_tree, listing, query, self.detokenize)

    async def cache_tokens(self, position: str) -> list[int]:
        cache = self._cache
        if cache is None:
            raise position_missing(position)
        return unpack(await self._ask(lambda: cache.find_position(position).known_place().tokens()))

    async def drop_cache_position(self, position: str) -> bool:
        if self._cache is None:
            raise position_missing(position)
        return await self._ask(partial(self._cache.drop_position, position))

    async def drop_cache(self) -> int:
        return 0 if self._cache is None else await self._ask(self._cache.drop_all)

    def cache_changes(self, since: int | None) -> SummaryChanges | None:
        """Return the changes since version `since` of the cache's summary, hashes of cached prompts, if it has one."""
        return None if self._upkeep is None else self._upkeep.changes(since)

    def forget_root(self, root: str) -> None:
        """Drop the cached states that were computed from the initial state with the digest `root`. For any thread."""
        if self._upkeep is not None:
            self._upkeep.forget_root(root)

    def tokenize(self, text: str) -> list[int]:
        pause()
        return self._tokenizer.encode(text)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        check_token_ids("token", tokens, self._info.shape.vocab_size)
        return b"".join(map(self._tokenizer.decode_bytes, tokens))

    def check_queue(self, client: Client = ANONYMOUS) -> None:
        self._refuse_if_unable()
        try:
            self._admission.check(client)
        except OverloadedError:
            self._scheduler.counters.outcomes[Outcome.OVERLOADED] += 1
            raise

    def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        """Return an iterator that queues and runs `request` and yields its events; see `EngineLike.generate`."""
        if (end := self._info.end_of_text) != 0 and 0 in request.stop_tokens:
            request = replace(request, stop_tokens=[token or end for token in request.stop_tokens])
        request.check(self._info.shape, self._info.max_logprobs, self._scheduler.capacity)
        self._scheduler.check_loras(request)
        return self._generate(request, wait_for_room)

    async def apply_head(self, features: F32, task: EmbeddingTask) -> F32:
        if self._heads is None:
            raise InvalidRequestError("task", task, "null, since the model was not made for embedding")
        return await asyncio.to_thread(self._heads.apply, features, task)

    async def score_states(self, states: Sequence[State]) -> F32:
        """See `EngineLike.score_states`. The reranker runs on the thread of the model, between two steps."""
        reranker = self._reranker
        if reranker is None:
            raise InvalidRequestError("model", self._info.model, "a model that was loaded with a reranker")
        return await self._ask(lambda: reranker.score(states))

    async def close(self) -> None:
        """Stop taking requests, end the running ones with EngineClosedError, and free the device. Idempotent.

        Returns after a minute at the latest: a worker that waits for its device all that time is left behind.
        """
        if not self._closing:
            self._closing = True
            self._stop_upkeep()
            self._admission.close()
            self._worker.stop()
        try:
            await asyncio.wait_for(self._ended.wait(), CLOSE_SECONDS)
            self._worker.join()
        except TimeoutError:
            stack = stack_of(self._worker.thread_id)
            logger.critical(
                "the worker has not ended after %g s and is abandoned; its stack:\n%s", CLOSE_SECONDS, stack
            )
            self._note_end()
        self._watchdog.stop()
        # A thread still refers to what it has called for a moment after the call has returned here.
        await asyncio.to_thread(_weakly(self._watchdog.join))
        await asyncio.to_thread(_weakly(self._masks.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _generate(self, request: GenerateRequest, wait_for_room: bool) -> AsyncGenerator[Event, None]:
        with RequestAccount(self._scheduler.counters) as account:
            self._refuse_if_unable()
            request = await self._masks.make(request)
            async with self._admission.place(request.client, wait=wait_for_room):
                self._refuse_if_unable()  # again, since it may have waited
                key = next(self._keys)
                inbox = self._inboxes.open(key, partial(self._pause, key))
                begun = time.monotonic()
                self._worker.submit(key, request, account.arrived)
                timers = self._set_timers(key, request, wait_for_room)
                try:
                    while not isinstance(event := await inbox.get(), Finished):
                        if type(event) is Started:
                            account.started(event.prompt_tokens, event.cached_tokens, event.timing)
                        yield event
                    self._admission.note_duration(time.monotonic() - begun)
                    account.finished(event.reason, event.completion_tokens)
                    yield event
                finally:
                    for timer in timers:
                        timer.cancel()
                    account.generated(inbox.num_tokens)
                    self._inboxes.remove(key)
                    self._worker.call(partial(self._scheduler.cancel, key))  # no error if it has ended

    def _set_timers(self, key: int, request: GenerateRequest, was_begun: bool) -> list[asyncio.TimerHandle]:
        """Set and return the timers of a request's deadline and, unless it `was_begun`, of its wait for a slot."""
        timers: list[asyncio.TimerHandle] = []
        if request.deadline is not None:
            late = TimeLimitError("the request reached its time limit before its first token; see `timeout`")
            timers.append(self._loop.call_at(request.deadline, self._end_request, self._scheduler.expire, key, late))
        if self._queue_seconds is not None and not was_begun:
            full = OverloadedError(f"no slot became free within {self._queue_seconds:g} s", self._admission.retry_after)
            timers.append(
                self._loop.call_later(self._queue_seconds, self._end_request, self._scheduler.withdraw, key, full)
            )
        return timers

    def _end_request(
        self, end: Callable[[int, RnnEngineError], list[Delivery]], key: int, error: RnnEngineError
    ) -> None:
        self._worker.call(lambda: self._inboxes.post(end(key, error)))

    async def _ask(self, question: Callable[[], T]) -> T:
        """Call `question` on the thread that runs the model, between two of its steps, and return the result."""
        self._refuse_if_unable()
        return await self._questions.ask(question)

    def _refuse_if_unable(self) -> None:
        if self._closing or self._ended.is_set():
            raise EngineClosedError
        self._worker.health.check()

    def _wake_worker(self) -> None:
        """Wake the thread that runs the model, so that it looks for work. May be called on any thread."""
        self._worker.call(lambda: None)

    def _pause(self, key: int, paused: bool) -> None:
        self._worker.call(partial(self._scheduler.pause, key, paused))

    def _note_end(self) -> None:
        """End all requests and questions to the cache with EngineClosedError: the thread of the model has ended."""
        self._ended.set()
        self._stop_upkeep()
        self._admission.close()
        self._end_waiting(EngineClosedError)  # after the outcome that the worker gave, if it gave one

    def _stop_upkeep(self) -> None:
        if self._upkeep is not None:
            self._upkeep.stop()

    def _note_stall(self) -> None:
        """End all requests and questions to the cache with UnavailableError if the device still does not answer."""
        health = self._worker.health
        if health.status == "stalled":  # else it has just gone on
            self._end_waiting(partial(UnavailableError, str(health.reason), health.retry_after))

    def _end_waiting(self, make_error: Callable[[], RnnEngineError]) -> None:
        self._inboxes.end(make_error)
        self._questions.end(make_error())


def _end(
    scheduler: Scheduler, parts: EngineParts, loop: asyncio.AbstractEventLoop, note_end: Callable[[], None]
) -> None:
    """Close the scheduler and the engine's parts, then have `loop` call `note_end`: the last act of the thread."""
    try:
        scheduler.close()
        parts.close()
    finally:
        with suppress(RuntimeError):  # the loop was closed, so nobody waits
            loop.call_soon_threadsafe(note_end)


def _weakly(method: Callable[P, None]) -> Callable[P, None]:
    """Return a function that calls a bound method while its object lives, so that a closed engine is freed at once."""
    reference = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        living = reference()
        if living is not None:
            living(*args, **kwargs)

    return call
