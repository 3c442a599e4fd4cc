"""`EngineLike`, the interface of an engine, in this process or remote, for the server, command line and operations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rnn_engine.chat_template import ChatTemplate, WorldTemplate
from rnn_engine.model import LoraChoice
from rnn_engine.requests import ANONYMOUS, Client, Event, GenerateRequest
from rnn_engine.telemetry import EngineCounters, Health, SlotUse
from rnn_engine.types import F32, DeviceMemory, EmbeddingTask, ModelShape, State, end_of_text
from rnn_engine_states.cache.browse import CacheTree, TreeQuery
from rnn_engine_states.cache.config import CacheStats
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.named.store import StateStore


@dataclass(frozen=True, slots=True)
class EmbeddingInfo:
    """Facts about a model that was made for embedding: it gives vectors and no text."""

    width: int  # the length of its vectors
    tasks: tuple[EmbeddingTask, ...]  # for which it has vectors, the default first
    reranker: str | None = None  # the name of the model that reads its states to rank documents, if one is loaded


@dataclass(frozen=True, slots=True)
class DevicePart:
    """The layers of a model that lie on one device."""

    device: str
    first_layer: int
    last_layer: int
    num_bytes: int | None = None  # that they take there; None on the CPU


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts about a loaded engine that clients may see, such as its model and device; they never change."""

    model: str  # the name that clients use
    shape: ModelShape
    device: str
    weights: str  # as `WeightChoice.parse` reads it, such as "f16"
    num_slots: int
    max_logprobs: int  # the most alternatives a token
    tokenizer: str
    created: int  # Unix time of the load, seconds
    blocks: Mapping[str, int] = field(default_factory=dict)  # matrices kept as in the file, by type, most first
    device_memory: DeviceMemory | None = None  # that the model takes on its devices; None on the CPU
    parts: tuple[DevicePart, ...] = ()  # of a model on several devices
    folders: Mapping[str, Path] = field(default_factory=dict)  # that it writes to, if any: `cache` and `states`
    loras: tuple[LoraChoice, ...] = ()  # that are merged into the model, in this order
    chat_template: ChatTemplate = field(default_factory=WorldTemplate)  # makes prompts of conversations
    special_tokens: Mapping[str, int] = field(default_factory=dict)  # that a chat template may use, by their text
    max_draft: int = 0  # most tokens of a draft; 0 = nothing is drafted
    embedding: EmbeddingInfo | None = None  # of a model that was made for embedding

    @property
    def end_of_text(self) -> int:
        return end_of_text(self.special_tokens)

    @property
    def end_text(self) -> str | None:
        """The text by which templates name the token that ends a text; None if it has none."""
        return next((text for text, token in self.special_tokens.items() if token == self.end_of_text), None)

    @property
    def device_bytes(self) -> int | None:
        return None if self.device_memory is None else self.device_memory.total


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How busy an engine is at one moment: the numbers of active and queued requests."""

    active: int  # requests that hold a slot
    queued: int


class EngineLike(Protocol):
    """The interface of an engine, local or remote, that the server and the command line use."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def states(self) -> StateStore: ...

    @property
    def state_files(self) -> StateFiles: ...

    def stats(self) -> EngineStats: ...

    def slot_uses(self) -> Sequence[SlotUse]:
        """Return the request in each occupied slot, the oldest first, without waiting. For any thread."""

    def counters(self) -> EngineCounters:
        """Return the engine's counters and histograms of times since its start."""

    def health(self) -> Health:
        """Return the engine's health: if it serves requests and, if not, why."""

    def cache_stats(self) -> CacheStats | None:
        """Return the sizes and counters of the state cache; None if the engine has no cache."""

    async def cache_tree(self, query: TreeQuery) -> CacheTree:
        """Return the cached prefixes that `query` selects, as a tree. Raises NotFoundError for an unknown id."""

    async def cache_tokens(self, position: str) -> list[int]:
        """Return the tokens of the cached prefix with the id `position`. Raises NotFoundError if there is none."""

    async def drop_cache_position(self, position: str) -> bool:
        """Remove a cached prefix; return False if it is in use. Raises NotFoundError if there is none."""

    async def drop_cache(self) -> int:
        """Remove every prompt prefix that is not in use from the state cache; return how many were removed."""

    def tokenize(self, text: str) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes that token ids stand for. Raises InvalidRequestError for the first that is no id."""

    def check_queue(self, client: Client = ANONYMOUS) -> None:
        """Raise OverloadedError, UnavailableError or EngineClosedError if `client` can send no request now."""

    def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        """Run `request` and yield its events: `Started`, the text in `TextDelta`s, and at last `Finished`.

        `PromptProgress` comes before `Started`, and `PromptScored` after it, if the request asks for them.

        Leaving the iteration early (`aclose`, cancellation) frees the slot within one step.

        Raises InvalidRequestError at once, or before the first event for a grammar that is wrong. Before the first
        event, raises OverloadedError, UnavailableError or EngineClosedError, and TimeLimitError if the request's
        deadline comes earlier. Raises StepError or UnavailableError if the device fails.

        With `wait_for_room`, this waits while the queue is full and does not raise OverloadedError. It is meant for the
        later requests of a call, after its first ones have run.
        """

    async def apply_head(self, features: F32, task: EmbeddingTask) -> F32:
        """Return vectors [N, D] for `task` of `features` [N, D]. Raises InvalidRequestError if the model has none."""

    async def score_states(self, states: Sequence[State]) -> F32:
        """Return the log-odds [N] that a document answers a query, from the states after the texts of N pairs.

        Raises InvalidRequestError if the engine has no reranker. Raises StepError or UnavailableError if the device
        fails.
        """

    async def close(self) -> None:
        """Stop taking requests, end the running ones with EngineClosedError, and free the device."""
