"""An engine without a model: it answers every prompt with a text that the test chooses, one byte a token.

Token 0 ends a text and token b + 1 stands for byte b. The engine keeps the promises of `EngineLike` that the server
relies on (checks, events in order, stop strings, limits, slots, closing). It can be held, overloaded or made to fail.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from rnn_engine.chat_template import ChatTemplate, WorldTemplate
from rnn_engine.errors import EngineClosedError, InvalidRequestError, RnnEngineError, StepError, check_token_ids
from rnn_engine.interface import EngineInfo, EngineStats
from rnn_engine.model import LoraChoice
from rnn_engine.requests import (
    ANONYMOUS,
    Client,
    EndState,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    PromptProgress,
    PromptScored,
    Started,
    TextDelta,
    TokenInfo,
)
from rnn_engine.scheduler.text import StopMatcher
from rnn_engine.telemetry import EngineCounters, Health, RequestAccount, SlotUse, Timing
from rnn_engine.types import F32, EmbeddingTask, ReadyState, State
from rnn_engine_states.cache.browse import CacheTree, SummaryChanges, TreeQuery, list_positions, make_tree
from rnn_engine_states.cache.cache import StateCache
from rnn_engine_states.cache.checkpoint import position_missing
from rnn_engine_states.cache.config import CacheStats
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.named.store import StateStore
from rnn_engine_states.tokens import unpack
from tests.support.models import tiny_shape
from tests.support.named_states import BlockingStates, make_states

VOCAB_SIZE = 257
SHAPE = tiny_shape(vocab=VOCAB_SIZE)
RANDOM_SEED = 4321


def encode(text: str) -> list[int]:
    """Return the fake engine's tokens of `text`."""
    return [byte + 1 for byte in text.encode()]


def state_after(tokens: Sequence[int], root: str = "") -> dict[str, F32]:
    """Return the fake engine's state after these tokens from this root: random, but the same for the same arguments."""
    return {name: array.copy() for name, array in _state_after(tuple(tokens), root).items()}


@lru_cache(maxsize=8)
def _state_after(tokens: tuple[int, ...], root: str) -> dict[str, F32]:
    fields = SHAPE.initial_state().items()
    return {
        name: np.random.default_rng([number, *root.encode(), *tokens]).standard_normal(array.shape, np.float32)
        for number, (name, array) in enumerate(fields)
    }


@dataclass
class FakeEngine:
    """An engine that answers `reply(request)`. If `hold` is set, requests wait before that token for `release`."""

    reply: Callable[[GenerateRequest], str] = lambda request: " Hello there!"
    num_slots: int = 2
    model: str = "fake"
    cached_tokens: int = 0
    hold: int | None = None
    fail_at: int | None = None  # raise StepError before this token
    vanish_at: int | None = None  # end without `Finished` before this token
    unrun: int = 0  # the number of last tokens of a text that came with its stop, and are not run
    refuse: RnnEngineError | None = None
    cache: StateCache | None = None  # for the routes that show it; no request uses it
    release: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # set when a request is abandoned
    named: BlockingStates = field(default_factory=lambda: make_states(shape=SHAPE))
    requests: list[GenerateRequest] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)  # roots of states that have no name any more
    slots_held: Sequence[SlotUse] = ()  # as it reports them
    active: int = 0
    most_active: int = 0
    produced: int = 0  # tokens, over all requests
    closed: bool = False
    condition: Health = field(default_factory=Health)
    counted: EngineCounters = field(default_factory=EngineCounters)
    folders: dict[str, Path] = field(default_factory=dict)
    loras: tuple[LoraChoice, ...] = ()
    chat_template: ChatTemplate = field(default_factory=WorldTemplate)
    special_tokens: dict[str, int] = field(default_factory=dict)
    max_draft: int = 0
    queue_seconds: float = 0.25  # as reported; it does not really wait
    prefill_seconds: float = 0.5

    def __post_init__(self) -> None:
        self.states: StateStore = self.named.store

    @property
    def state_files(self) -> StateFiles:
        return self.named.files

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            model=self.model,
            shape=SHAPE,
            device="none",
            weights="f32",
            num_slots=self.num_slots,
            max_logprobs=20,
            tokenizer="bytes",
            created=1_700_000_000,
            folders=self.folders,
            loras=self.loras,
            chat_template=self.chat_template,
            special_tokens=self.special_tokens,
            max_draft=self.max_draft,
        )

    def stats(self) -> EngineStats:
        return EngineStats(active=self.active, queued=0)

    def slot_uses(self) -> Sequence[SlotUse]:
        return self.slots_held

    def health(self) -> Health:
        return self.condition

    def counters(self) -> EngineCounters:
        return self.counted

    def cache_stats(self) -> CacheStats | None:
        return None if self.cache is None else self.cache.stats()

    async def cache_tree(self, query: TreeQuery) -> CacheTree:
        if self.cache is None:
            return CacheTree((), 0, truncated=False)
        listing = list_positions(self.cache.checkpoints(query.scope), self.cache.now(), query)
        return make_tree(listing, query, self.detokenize)

    async def cache_tokens(self, position: str) -> list[int]:
        if self.cache is None:
            raise position_missing(position)
        return unpack(self.cache.find_position(position).known_place().tokens())

    async def drop_cache_position(self, position: str) -> bool:
        if self.cache is None:
            raise position_missing(position)
        return self.cache.drop_position(position)

    async def drop_cache(self) -> int:
        return 0 if self.cache is None else self.cache.drop_all()

    def tokenize(self, text: str) -> list[int]:
        return encode(text)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        check_token_ids("token", tokens, VOCAB_SIZE)
        return bytes(token - 1 for token in tokens if token > 0)

    def check_queue(self, client: Client = ANONYMOUS) -> None:
        self.condition.check()
        if self.refuse is not None:
            raise self.refuse

    async def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        request.check(self.info.shape, self.info.max_logprobs, self.info.num_slots)
        if not wait_for_room:
            self.check_queue(request.client)
        if self.closed:
            raise EngineClosedError("the engine has stopped")
        self.requests.append(request)
        with self._slot(), RequestAccount(self.counted) as account:
            if request.report_progress:
                for done in (self.cached_tokens, len(request.prompt)):
                    yield PromptProgress(len(request.prompt), self.cached_tokens, done)
            timing = self._timing(account.arrived)
            account.started(len(request.prompt), self.cached_tokens, timing)
            yield Started(len(request.prompt), self.cached_tokens, timing)
            if request.score_from is not None:
                yield PromptScored(self._score_prompt(request, request.score_from))
            async for event in self._decode(request):
                if isinstance(event, Finished):
                    account.finished(event.reason, event.completion_tokens)
                yield event

    def cache_changes(self, since: int | None) -> SummaryChanges | None:
        if self.cache is None:
            return None
        self.cache.summarise()
        assert self.cache.summary is not None
        return self.cache.summary.changes(since)

    def forget_root(self, root: str) -> None:
        self.forgotten.append(root)

    async def apply_head(self, features: F32, task: EmbeddingTask) -> F32:
        raise InvalidRequestError("task", task, "null, since the model was not made for embedding")

    async def score_states(self, states: Sequence[State]) -> F32:
        raise InvalidRequestError("model", self.model, "a model that was loaded with a reranker")

    async def close(self) -> None:
        self.closed = True
        self.release.set()

    def _timing(self, arrived: float) -> Timing:
        return Timing(arrived, arrived + self.queue_seconds, arrived + self.queue_seconds + self.prefill_seconds)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.left.set()
            raise
        finally:
            self.active -= 1

    async def _decode(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        text, reason, stop = self._plan(request)
        decoder = codecs.getincrementaldecoder("utf-8")()
        tokens = [byte + 1 for byte in text]
        for position, token in enumerate(tokens):
            await self._obstacles(position)
            if position == self.vanish_at:
                return
            self.produced += 1
            [info] = self._score(request, [token], unknown=False)
            yield TextDelta(decoder.decode(info.data), (info,))
        await self._obstacles(len(tokens))
        seed = RANDOM_SEED if request.sampling.seed is None else request.sampling.seed
        end = self._end(request, tokens) if request.keep_end else None
        yield Finished(reason, len(tokens), seed, stop, end, self._stop_token(request, stop))

    def _stop_token(self, request: GenerateRequest, stop: bytes | int | None) -> TokenInfo | None:
        if not isinstance(stop, int) or request.logprobs is None:
            return None
        return next(self._score(request, [stop], unknown=False))

    def _end(self, request: GenerateRequest, generated: Sequence[int]) -> EndState:
        tokens = (*request.prompt, *generated[: max(len(generated) - self.unrun, 0)])
        root = "" if request.initial_state is None else request.initial_state.root
        return EndState(tokens, ReadyState(state_after(tokens, root)), np.zeros(VOCAB_SIZE, np.float32))

    def _plan(self, request: GenerateRequest) -> tuple[bytes, FinishReason, bytes | int | None]:
        text = self.reply(request).encode()
        matcher = StopMatcher(request.stop_bytes, request.tool_format, strips=request.strips)
        cut = matcher.feed(text) + matcher.flush()
        if matcher.match is not None and len(cut) <= request.max_tokens:
            return cut, "stop", matcher.match
        if len(text) >= request.max_tokens:
            return text[: request.max_tokens], "length", None
        return text, "stop", 0

    async def _obstacles(self, position: int) -> None:
        await asyncio.sleep(0)
        if position == self.fail_at:
            raise StepError("the device was lost")
        if position == self.hold:
            self.held.set()
            await self.release.wait()
        if self.closed:
            raise EngineClosedError("the engine has stopped")

    def _score_prompt(self, request: GenerateRequest, first: int) -> tuple[TokenInfo, ...]:
        unknown = first == 0 and (request.initial_state is None or request.initial_state.logits is None)
        return tuple(self._score(request, request.prompt[first:], unknown))

    def _score(self, request: GenerateRequest, tokens: Sequence[int], unknown: bool) -> Iterator[TokenInfo]:
        """Yield token infos. Token t has log-probability -t / 100 unless it is unknown; token 1 is the likeliest."""
        for position, token in enumerate(tokens):
            scored = request.logprobs is not None and not (unknown and position == 0)
            top = tuple((rank + 1, -(rank + 1) / 100) for rank in range(request.logprobs or 0)) if scored else ()
            yield TokenInfo(token, self.detokenize([token]), -token / 100 if scored else None, top)
