"""What the server, the command line and the operations need of an engine, in this process or somewhere else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rnn_engine.chat_template import ChatTemplate, WorldTemplate
from rnn_engine.model import LoraChoice
from rnn_engine.requests import ANONYMOUS, Client, Event, GenerateRequest
from rnn_engine.telemetry import EngineCounters, Health, SlotUse
from rnn_engine.types import ModelShape
from states.cache.browse import CacheTree, SnapshotNode, TreeQuery
from states.cache.config import CacheStats
from states.files.exchange import StateFiles
from states.named.store import StateStore


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The facts of a loaded engine that clients may see; they never change."""

    model: str  # the name that clients use
    shape: ModelShape
    device: str
    weights: str  # as `WeightChoice.parse` reads it, such as "f16"
    num_slots: int
    max_logprobs: int  # the most alternatives a token
    tokenizer: str
    created: int  # Unix time of the load, seconds
    device_bytes: int | None = None  # memory that weights, states and buffers take on the device; None on the CPU
    folders: Mapping[str, Path] = field(default_factory=dict)  # that it writes to: `cache` and `states`, where it does
    loras: tuple[LoraChoice, ...] = ()  # that are merged into the model, in this order
    chat_template: ChatTemplate = field(default_factory=WorldTemplate)  # what conversations become a prompt by
    special_tokens: Mapping[str, int] = field(default_factory=dict)  # that a chat template may spell, by their text
    max_draft: int = 0  # tokens of a draft at most; 0 = nothing is drafted


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How busy an engine is at one moment."""

    active: int  # requests that hold a slot
    queued: int


class EngineLike(Protocol):
    """The few methods through which the server and the CLI reach a local or a remote engine."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def states(self) -> StateStore:
        """The states that have names: what requests may start from, and where ends of requests are kept."""
        ...

    @property
    def state_files(self) -> StateFiles:
        """The reader and writer of files with states of this model."""
        ...

    def stats(self) -> EngineStats: ...

    def slot_uses(self) -> Sequence[SlotUse]:
        """What each slot that is held is used for, the oldest request first. For any thread; waits for nothing."""
        ...

    def counters(self) -> EngineCounters:
        """What was run since the start, and how long it took."""
        ...

    def health(self) -> Health:
        """Whether the engine serves requests, and if not, why."""
        ...

    def cache_stats(self) -> CacheStats | None:
        """What is kept of prompts and answers; None where nothing ever is."""
        ...

    async def cache_nodes(self, limit: int, scope: str | None = None) -> tuple[SnapshotNode, ...]:
        """The `limit` kept positions that were asked for most, of all or of a scope, as a tree; see
        `states.cache.browse`."""
        ...

    async def cache_tree(self, query: TreeQuery) -> CacheTree:
        """The kept positions that `query` asks for, with their texts. Raises NotFoundError for an id that is none."""
        ...

    async def cache_tokens(self, position: str) -> list[int]:
        """The tokens from the root to the kept position with this id. Raises NotFoundError."""
        ...

    async def drop_cache_position(self, position: str) -> bool:
        """Forget one kept position; False where it is in use. Raises NotFoundError."""
        ...

    async def drop_cache(self) -> int:
        """Forget every kept position that is not in use; how many these were."""
        ...

    def tokenize(self, text: str) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of `tokens`. Raises InvalidRequestError for the first that is no token id."""
        ...

    def check_queue(self, client: Client = ANONYMOUS) -> None:
        """Raise OverloadedError, UnavailableError or EngineClosedError if one of `client` would be refused now."""
        ...

    def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        """Run `request`: `Started`, perhaps `PromptScored`, `TextDelta`s, `Finished`.

        Leaving the iteration early (`aclose`, cancellation) frees the slot within one step.
        Raises InvalidRequestError at once, or before the first event for a grammar that is wrong; OverloadedError,
        UnavailableError or EngineClosedError before the first event, and TimeLimitError where the request's deadline
        comes before it; StepError or UnavailableError where the device fails. With `wait_for_room` a full queue is
        waited for instead of raising OverloadedError; that is for the later requests of a call whose first ones have
        run.
        """
        ...

    async def close(self) -> None:
        """Stop taking requests, end the running ones with EngineClosedError, and free the device."""
        ...
