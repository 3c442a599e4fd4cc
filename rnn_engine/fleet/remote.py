"""`RemoteEngine`, the engine of a fleet: it has the interface `EngineLike`, and runs its requests on replicas."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from rnn_engine.bounds import MAX_QUEUED
from rnn_engine.chat_template import ChatTemplate
from rnn_engine.errors import OverloadedError, check_token_ids
from rnn_engine.fleet.members import (
    SURVEY_SECONDS,
    EndedError,
    Members,
    RemoteRequest,
    add_up,
    all_slot_uses,
    join_trees,
    split_position,
)
from rnn_engine.fleet.replica import ReplicaEngine
from rnn_engine.fleet.routing import PrefixRouter
from rnn_engine.fleet.wire import Links, ReplicaLostError, pack_request
from rnn_engine.hub import locate_model
from rnn_engine.interface import EngineInfo, EngineStats
from rnn_engine.loading.chat_template import load_chat_template
from rnn_engine.loading.parts import own_folders
from rnn_engine.loading.runner import RunnerSize, open_model
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.loading.states import open_states, share_names
from rnn_engine.requests import ANONYMOUS, Client, Event, Finished, GenerateRequest, Started
from rnn_engine.scheduler.inboxes import Admission
from rnn_engine.telemetry import EngineCounters, Health, Outcome, RequestAccount, SlotUse
from rnn_engine.tokenizer import Tokenizer, load_tokenizer
from rnn_engine.types import F32, DeviceMemory, EmbeddingTask, State
from rnn_engine_states.cache.browse import CacheTree, TreeQuery
from rnn_engine_states.cache.config import CacheConfig, CacheStats
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.named.store import StateStore
from rnn_engine_states.shared.config import StoreConfig, StoreCounters, open_store

MOST_ATTEMPTS = 3  # replicas that are tried for a request, if each is lost before it answers anything

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Front:
    """The parts of a fleet that the server's process has itself: tokenizer, chat template and named states."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    states: StateStore
    state_files: StateFiles
    folders: Mapping[str, Path] = field(default_factory=dict)
    on_forgotten: Callable[[Callable[[str], None]], None] = lambda _: None  # registers a callback for nameless states
    store_counters: Callable[[], StoreCounters | None] = lambda: None  # of the client of the named states' store
    close: Callable[[], None] = lambda: None


class RemoteEngine:
    """An engine that runs each request on one of many replicas. Implements `EngineLike`.

    A request goes to one replica and stays there: to one that has run the beginning of its prompt, if that is worth it.
    The replica is chosen here and not by a router of Ray Serve: only here are the prompt and, at once, the number of
    requests at each replica known. If the replica of a request dies before any of the answer has come, another replica
    runs the request; otherwise the request ends with UnavailableError. Information about the replicas (counters, cache,
    slots) is up to half a second old. For one event loop.
    """

    def __init__(self, links: Links, front: Front, max_queued: int, router: PrefixRouter) -> None:
        """Create an engine without replicas; callers use `open` instead. `close` also closes `links` and `front`."""
        self._links = links
        self._front = front
        self._keys = itertools.count()
        self._members = Members(links, uuid.uuid4().hex, router)
        self._own = EngineCounters()
        self._admission = Admission(1, max_queued)
        self._facts: EngineInfo | None = None
        self._surveying: asyncio.Task[None] | None = None
        self._forgetting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        front.on_forgotten(self._note_forgotten)

    @classmethod
    async def open(
        cls, links: Links, front: Front, *, max_queued: int = MAX_QUEUED, router: PrefixRouter | None = None
    ) -> Self:
        """Create an engine on the replicas behind `links` after the first report; it owns `links` and `front`."""
        engine = cls(links, front, max_queued, router or PrefixRouter())
        try:
            await engine._survey()
            while engine._facts is None:
                await asyncio.sleep(SURVEY_SECONDS)
                await engine._survey()
        except BaseException:
            await engine._close_members()
            raise
        engine._surveying = asyncio.create_task(engine._keep_surveying())
        return engine

    @property
    def info(self) -> EngineInfo:
        assert self._facts is not None, "there was a survey"
        return self._facts

    @property
    def states(self) -> StateStore:
        return self._front.states

    @property
    def state_files(self) -> StateFiles:
        return self._front.state_files

    def stats(self) -> EngineStats:
        """Return the estimated numbers of this server process's requests that are in a slot and that wait for one."""
        active = sum(min(member.outstanding, member.report.info.num_slots) for member in self._members)
        return EngineStats(active, self._admission.taken - active)

    def slot_uses(self) -> Sequence[SlotUse]:
        return all_slot_uses(self._members.reports)

    def counters(self) -> EngineCounters:
        return self._members.counters(self._own)

    def health(self) -> Health:
        return self._members.health()

    def cache_stats(self) -> CacheStats | None:
        stats = self._members.cache_stats()
        if stats is not None:
            stats.store = add_up([stats.store, self._front.store_counters()])
        return stats

    async def cache_tree(self, query: TreeQuery) -> CacheTree:
        """See `EngineLike.cache_tree`. Afterwards, `cache_stats` includes everything from before the call."""
        await self._survey()
        if query.under is None:
            return join_trees(await self._members.ask_all(ReplicaEngine.cache_tree, query), query.limit)
        replica, under = split_position(query.under)
        tree = await self._members.ask(query.under, ReplicaEngine.cache_tree, replace(query, under=under))
        return join_trees({replica: tree}, query.limit)

    async def cache_tokens(self, position: str) -> list[int]:
        return await self._members.ask(position, ReplicaEngine.cache_tokens, split_position(position)[1])

    async def drop_cache_position(self, position: str) -> bool:
        return await self._members.ask(position, ReplicaEngine.drop_cache_position, split_position(position)[1])

    async def drop_cache(self) -> int:
        return sum((await self._members.ask_all(ReplicaEngine.drop_cache)).values())

    def tokenize(self, text: str) -> list[int]:
        return self._front.tokenizer.encode(text)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        check_token_ids("token", tokens, self.info.shape.vocab_size)
        return b"".join(map(self._front.tokenizer.decode_bytes, tokens))

    def check_queue(self, client: Client = ANONYMOUS) -> None:
        self._members.refuse_if_unable()
        try:
            self._admission.check(client)
        except OverloadedError:
            self._own.outcomes[Outcome.OVERLOADED] += 1
            raise

    def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        """See `EngineLike.generate`. A replica gets the request when the iteration begins."""
        slots = max((report.info.num_slots for report in self._members.reports), default=1)
        request.check(self.info.shape, self.info.max_logprobs, slots)
        return self._generate(request, wait_for_room)

    async def apply_head(self, features: F32, task: EmbeddingTask) -> F32:
        return await self._members.ask_any(ReplicaEngine.apply_head, features, task)

    async def score_states(self, states: Sequence[State]) -> F32:
        return await self._members.ask_any(ReplicaEngine.score_states, states)

    async def close(self) -> None:
        """Stop taking requests, end the running ones with EngineClosedError, and leave the replicas. Idempotent."""
        if self._members.closing:
            return
        await self._close_members()
        await self._links.close()
        self._front.close()

    async def _close_members(self) -> None:
        """Reject new requests, end the running ones and their streams, and cancel this process's calls to replicas."""
        self._members.closing = True
        self._admission.close()
        tasks = [*self._forgetting, *(() if self._surveying is None else (self._surveying,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._members.close()

    async def _generate(self, request: GenerateRequest, wait_for_room: bool) -> AsyncGenerator[Event, None]:
        with RequestAccount(self._own) as account:
            self._members.refuse_if_unable()
            async with self._admission.place(request.client, wait=wait_for_room):
                begun = time.monotonic()
                for attempt in itertools.count(1):
                    member = self._members.choose(request)
                    remote = RemoteRequest(member, next(self._keys), pack_request(request, wait_for_room))
                    answered = False
                    try:
                        with remote:
                            while not isinstance(event := await remote.inbox.get(), Finished):
                                answered = True
                                if type(event) is Started:
                                    account.started(event.prompt_tokens, event.cached_tokens, event.timing)
                                yield event
                    except EndedError:
                        return
                    except ReplicaLostError:
                        if answered or attempt == MOST_ATTEMPTS:
                            raise
                        _log.info("a request starts again, since the replica %s is gone", member.name)
                        continue
                    finally:
                        account.generated(remote.inbox.num_tokens)
                    self._admission.note_duration(time.monotonic() - begun)
                    account.finished(event.reason, event.completion_tokens)
                    yield event
                    return

    def _note_forgotten(self, root: str) -> None:
        """Have all replicas drop states computed from the initial state `root`. May be called on any thread."""
        with suppress(RuntimeError):  # the loop was closed, so the replicas are no longer used
            self._loop.call_soon_threadsafe(self._forget_root, root)

    def _forget_root(self, root: str) -> None:
        if self._members.health().status == "ok":
            task = asyncio.create_task(self._have_forgotten(root))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    async def _have_forgotten(self, root: str) -> None:
        """Call `forget_root` for the initial state with the digest `root` on all replicas' engines; log a failure."""
        try:
            await self._members.ask_all(ReplicaEngine.forget_root, root)
        except Exception:
            _log.exception("what the replicas keep of a state that has no name any more may not be dropped")

    async def _keep_surveying(self) -> None:
        while True:
            await asyncio.sleep(SURVEY_SECONDS)
            try:
                await self._survey()
            except Exception:
                _log.exception("the replicas could not be surveyed")

    async def _survey(self) -> None:
        await self._members.survey()
        self._note_members()

    def _note_members(self) -> None:
        """Update the engine's `info` and its limit on running requests from the replicas' latest reports."""
        infos = [member.report.info for member in self._members.takers]
        if not infos and self._facts is None:
            infos = [report.info for report in self._members.reports]
        if not infos:
            return
        slots = sum(info.num_slots for info in infos)
        taken = [info.device_memory for info in infos if info.device_memory is not None]
        self._admission.resize(slots)
        self._facts = replace(
            infos[0],
            num_slots=slots,
            device_memory=DeviceMemory.sum(taken) if taken else None,
            folders=self._front.folders,
            chat_template=self._front.chat_template,
        )


_NO_CACHE = CacheConfig(device_capacity=0, host_capacity=0)
_DEFAULT_SETTINGS = LoadSettings()


def open_front(
    model_path: str | Path,
    loading: LoadSettings = _DEFAULT_SETTINGS,
    *,
    states: StateSettings | None = None,
    store: StoreConfig | None = None,
) -> Front:
    """Open the parts of a fleet that the server's process has: a model's tokenizer, chat template and named states.

    Blocks. Reads the model's weights only for their fingerprint. The options are those of `Engine.load`, and so are the
    errors. With a `store`, server processes share named states.
    """
    path, settings = locate_model(model_path), states or StateSettings()
    with ExitStack() as undo:
        folders = {}
        for use, folder in own_folders(_NO_CACHE, settings):
            undo.callback(folder.release)
            folders[use] = folder.path
        opened = None if store is None else open_store(store)
        if opened is not None:
            undo.callback(opened.close)
        with open_model(path, tuple(loading.loras), v5_group_norm_epsilon=loading.v5_group_norm_epsilon) as model:
            chosen = load_tokenizer(loading.tokenizer, path, model.shape.vocab_size)
            room = RunnerSize(max_loras=loading.max_loras, max_lora_rank=loading.max_lora_rank).loras_of(model)
            own_states = open_states(model, settings, room)
            named = share_names(opened, own_states, model.fingerprint, settings)
        return Front(
            tokenizer=chosen,
            chat_template=load_chat_template(loading.chat_template, path),
            states=named,
            state_files=own_states.files,
            folders=folders,
            on_forgotten=own_states.on_forgotten,
            store_counters=lambda: None if opened is None else opened.client.counters(),
            close=undo.pop_all().close,
        )
