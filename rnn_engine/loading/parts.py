"""Load the parts of an engine: runner, tokenizer, state cache, named states. Blocks the calling thread."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from rnn_engine.bounds import AUTO, STORED
from rnn_engine.chat_template import ChatTemplate, WorldTemplate
from rnn_engine.demo import find_reranker
from rnn_engine.errors import ModelError
from rnn_engine.forward import GpuRunner, Progress, SplitRunner
from rnn_engine.forward.onnx_graph import has_onnxruntime
from rnn_engine.forward.split_runner import PartRunner
from rnn_engine.forward.weight_choice import count_kept, parse_weights
from rnn_engine.hub import model_name
from rnn_engine.interface import DevicePart, EmbeddingInfo, EngineInfo
from rnn_engine.loading.chat_template import load_chat_template
from rnn_engine.loading.kernel_choices import TuneOrder
from rnn_engine.loading.memory import MemoryPlan, cpu_has, plan_memory
from rnn_engine.loading.placement import DeviceChoice, choose_device, devices_of, split_device
from rnn_engine.loading.reranker import Reranker
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model, spare_slot_bytes
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.loading.states import make_state_store, open_states, share_names
from rnn_engine.model import LoraChoice, ModelFile
from rnn_engine.scheduler.drafts import NO_DRAFTS, DraftSettings
from rnn_engine.tokenizer import NoTokenizer, Tokenizer, load_tokenizer
from rnn_engine.types import DeviceMemory, Runner
from rnn_engine.versions.v7_retrieval import TASKS, ShapeV7Embedding, ShapeV7Reranker, TaskHeads
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.cache.tiers.tier import SlotPool
from rnn_engine_states.files.exchange import CACHE_LOCK, STATES_LOCK, OwnedFolder
from rnn_engine_states.named.store import LocalTable, StateStore
from rnn_engine_states.shared.config import OpenStore, open_store


def freeze_modules() -> None:
    """Make the garbage collector skip all objects that exist now. To be called before models are loaded.

    Imports leave some 130,000 objects. A full collection visits them all, which takes about 45 ms in which no thread of
    the process does anything else; while many tokens are generated, there are several collections a second.
    """
    gc.collect()
    gc.freeze()


MAX_LOGPROBS = 20
MOST_DRAFTING = 4  # sequences of a step; each takes a spare slot
_log = logging.getLogger(__name__)
_ON_PROCESSOR = ("the processor, with numpy alone (faster after pip install 'rnn-engine[cpu]')", "the processor")

LoadRunner: TypeAlias = Callable[[Progress, Sequence[PartRunner | None]], Runner]
"""A function that loads an engine's model again, on the same devices and with the same settings.

Of a model on several devices it loads the parts that are None; there are no parts if all are to be loaded. Raises
ModelError or DeviceError.
"""


@dataclass(slots=True)
class EngineParts:
    """The loaded parts of an engine. The runner's slots from `info.num_slots` on are spare."""

    info: EngineInfo
    runner: Runner  # another one after `reopen`
    tokenizer: Tokenizer
    own_states: LocalTable  # with the files that the operator brings
    cache: StateCache | None
    folders: Mapping[str, OwnedFolder]  # `cache` and `states`, if in use
    load_runner: LoadRunner | None  # None = the runner can't be loaded again
    states: StateStore  # the named states that clients see: `own_states`, or those of the store
    store: OpenStore | None = None  # shared with other servers
    drafts: DraftSettings = NO_DRAFTS
    heads: TaskHeads | None = None  # of a model made for embedding
    reranker: Reranker | None = None

    def reopen(self, check: Callable[[], None]) -> Runner:
        """Close the runner (the model on its device), open the device again, and return a new runner of the model.

        If some of several devices are lost, only these are opened again; the others keep their weights.
        Only the thread that owns the runner may call this. The states that the cache stores on the device are lost; its
        other states and all other parts stay. `check` is called repeatedly while the model is loaded and may raise an
        exception to stop. Raises ModelError if the model's file is gone or was replaced, DeviceError if the device
        can't be opened. After an error there is no working runner; call this again.
        """
        if self.load_runner is None:
            return self.runner
        if self.cache is not None:
            self.cache.lose_device()
        kept = _kept_parts(self.runner)
        closing = [part for part in _runners(self.runner) if part not in kept]
        for part in closing:
            if isinstance(part, GpuRunner):
                part.device.retire()
        for loaded in (*closing, self.reranker):
            try:
                if loaded is not None:
                    loaded.close()
            except Exception:
                _log.exception("the memory of a device that failed could not be freed")
        self.runner = self.load_runner(lambda *_: check(), kept)
        if self.reranker is not None:
            self.reranker.reopen(lambda *_: check())
        if self.cache is not None:
            first = self.info.num_slots + len(self.drafts.spare_slots)
            self.cache.use_device(self.runner, SlotPool(self.runner, first, max(self.runner.num_slots - first, 0)))
        return self.runner

    def close(self) -> None:
        """Write cached states, free the device and unlock folders. Only for the thread that owns the runner."""
        with ExitStack() as last_first:
            last_first.callback(self.runner.close)
            if self.reranker is not None:
                last_first.callback(self.reranker.close)
            if self.store is not None:
                last_first.callback(self.store.close)
            for folder in self.folders.values():
                last_first.callback(folder.release)
            if self.cache is not None:
                last_first.callback(self.cache.close)


def open_parts(
    path: Path,
    settings: LoadSettings,
    *,
    name: str | None,
    num_slots: int,
    cache: CacheConfig | None,
    states: StateSettings,
    progress: Progress,
) -> EngineParts:
    """Load an engine's parts; see `Engine.load`. If this raises an exception, nothing stays open."""
    config = CacheConfig(device_capacity=0, host_capacity=0) if cache is None else cache
    loras = tuple(settings.loras)
    open_file = partial(open_model, path, loras, v5_group_norm_epsilon=settings.v5_group_norm_epsilon)
    with ExitStack() as undo, open_file() as model:
        if isinstance(model.shape, ShapeV7Reranker):
            raise ModelError(f"{path} is a reranker; expected an embedding model beside it: MODEL --reranker {path}")
        folders: dict[str, OwnedFolder] = {}
        for use, folder in own_folders(config, states):
            undo.callback(folder.release)
            folders[use] = folder
        store = None if config.store is None else open_store(config.store)
        if store is not None:
            undo.callback(store.close)
        template = load_chat_template(settings.chat_template, path)
        tokenizer = load_tokenizer(settings.tokenizer, path, model.shape.vocab_size)
        if isinstance(tokenizer, NoTokenizer) and settings.tokenizer == "auto":
            _log.warning("%s has no tokenizer, so it takes token ids and no text: %s", path.name, tokenizer.reason)
        heads = TaskHeads(model) if isinstance(model.shape, ShapeV7Embedding) else None
        model.start_identifying()
        loaded = _load_onto_device(model, path, settings, num_slots=num_slots, config=config, progress=progress)
        undo.callback(loaded.close)
        fingerprint = model.identify(lambda done, total: progress("reading the weights", done, total))
        own_states = open_states(model, states, loaded.runner.lora_room)
        first_slab = num_slots + len(loaded.drafts.spare_slots)
        kept = _open_cache(loaded.runner, first_slab, f"{fingerprint} {loaded.weights}", config, store)
        named_states = share_names(store, own_states, fingerprint, states)
        undo.pop_all()

    def load_again(progress: Progress, kept: Sequence[PartRunner | None]) -> Runner:
        with open_file() as again:
            if again.fingerprint != fingerprint:
                raise ModelError(f"{path}: the weights have changed since they were loaded; restart the server")
            return loaded.load(again, loaded.device, progress, kept)

    _log.info(
        "%s: device %s, weights %s%s, %d slots. Why this device: %s",
        name or model_name(path),
        _ON_PROCESSOR[has_onnxruntime()] if loaded.device == "cpu" else loaded.device_name,
        loaded.weights,
        " (the best format that fits)" if settings.weights == AUTO else "",
        num_slots,
        loaded.reason,
    )
    return assemble(
        loaded.runner,
        tokenizer,
        model=name or model_name(path),
        device=loaded.device_name,
        weights=loaded.weights,
        blocks=_kept_blocks(model, loaded),
        device_memory=loaded.memory,
        parts=loaded.parts,
        num_slots=num_slots,
        own_states=own_states,
        cache=kept,
        folders=folders,
        load_runner=load_again,
        states=named_states,
        store=store,
        drafts=loaded.drafts,
        loras=loras,
        chat_template=template,
        heads=heads,
        reranker=loaded.reranker,
    )


def _kept_blocks(model: ModelFile, loaded: _Loaded) -> dict[str, int]:
    """Count the matrices that are kept in the blocks of the file, by type, the most frequent first."""
    weights = STORED if loaded.device == "cpu" and not has_onnxruntime() else loaded.weights  # numpy keeps all of them
    return dict(count_kept(model, parse_weights(weights, model.shape)[0]).most_common())


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model and perhaps its reranker on a device, and how they came there."""

    runner: Runner
    reranker: Reranker | None
    device: str  # to load on it again: an index, a name, or cpu
    reason: str  # why this device, in words for the log
    weights: str
    drafts: DraftSettings
    load: Callable[..., Runner]  # (model, device, progress, kept): loads it with the same settings

    @property
    def device_name(self) -> str:
        return " + ".join(map(_device_name, _runners(self.runner)))

    @property
    def parts(self) -> tuple[DevicePart, ...]:
        """The parts of a model on several devices; none if it is on one."""
        if not isinstance(self.runner, SplitRunner):
            return ()
        return tuple(
            DevicePart(
                _device_name(runner),
                layers.start,
                layers.stop - 1,
                runner.memory.total if isinstance(runner, GpuRunner) else None,
            )
            for runner, layers in zip(self.runner.parts, self.runner.layers, strict=True)
        )

    @property
    def memory(self) -> DeviceMemory | None:
        """The memory of devices that both take; None on the CPU."""
        taken = [runner.memory for runner in _runners(self.runner) if isinstance(runner, GpuRunner)]
        if not taken:
            return None
        if self.reranker is not None and self.reranker.memory is not None:
            taken.append(self.reranker.memory)
        return DeviceMemory.sum(taken)

    def close(self) -> None:
        with ExitStack() as both:
            both.callback(self.runner.close)
            if self.reranker is not None:
                both.callback(self.reranker.close)


def _runners(runner: Runner) -> tuple[Runner, ...]:
    """Return the runners on each of a model's devices."""
    return runner.parts if isinstance(runner, SplitRunner) else (runner,)


def _kept_parts(runner: Runner) -> list[PartRunner | None]:
    """Return the parts of a model on several devices, with None for each on a lost device; nothing if none is lost."""
    parts = runner.parts if isinstance(runner, SplitRunner) else ()
    kept = [None if isinstance(part, GpuRunner) and part.device.is_lost else part for part in parts]
    return kept if None in kept else []


def _device_name(runner: Runner) -> str:
    return runner.device.info.name if isinstance(runner, GpuRunner) else "cpu"


def _load_onto_device(
    model: ModelFile, path: Path, settings: LoadSettings, *, num_slots: int, config: CacheConfig, progress: Progress
) -> _Loaded:
    """Choose a device, and load model and reranker onto it, with spare slots for drafts and for the cache."""
    num_drafting = min(num_slots, MOST_DRAFTING) if settings.speculate else 0
    size = RunnerSize(
        num_slots,
        spare_bytes=config.device_capacity + num_drafting * spare_slot_bytes(model.shape),
        max_loras=settings.max_loras,
        max_lora_rank=settings.max_lora_rank,
    )
    choice, plan = place_model(model, settings, size)
    reranker = None
    with ExitStack() as undo:
        if (reranker_path := settings.reranker or find_reranker(path)) is not None:
            first = devices_of(plan.device)[0]
            reranker = Reranker(
                reranker_path, model.shape, first, weights=plan.weights, num_slots=num_slots, progress=progress
            )
            undo.callback(reranker.close)
            plan = _plan(model, choice.device, settings, size)  # in the memory that is left

        def load(opened: ModelFile, device: str, progress: Progress, kept: Sequence[PartRunner | None] = ()) -> Runner:
            return load_runner(
                opened,
                device,
                replace(size, spare_bytes=plan.spare_bytes),
                weights=plan.weights,
                warm_up=True,
                tune=TuneOrder(settings.tune_seconds),
                threads=settings.threads,
                progress=progress,
                kept=kept,
            )

        runner = load(model, plan.device, progress)
        undo.pop_all()
    device = plan.device
    if device == "auto" and isinstance(runner, GpuRunner):
        device = runner.device.info.name
    return _Loaded(
        runner,
        reranker,
        device,
        choice.reason,
        plan.weights,
        DraftSettings(settings.speculate, range(num_slots, min(num_slots + num_drafting, runner.num_slots))),
        load,
    )


def place_model(model: ModelFile, settings: LoadSettings, size: RunnerSize) -> tuple[DeviceChoice, MemoryPlan]:
    """Choose the device for `model`, its weight format there, and the memory for spare slots.

    For the setting "auto", the device may be "cpu"; see `choose_device`. Raises as `plan_memory` does.
    """
    if not cpu_has(settings.weights) and settings.device == "auto":
        choice = DeviceChoice("auto", f"cpu has no weights in {settings.weights}")
    else:
        device = split_device(settings.device, settings.split, model.shape.num_layers)
        choice = choose_device(model, device)
    return choice, _plan(model, choice.device, settings, size)


def _plan(model: ModelFile, device: str, settings: LoadSettings, size: RunnerSize) -> MemoryPlan:
    return plan_memory(model, device, size, weights=settings.weights, device_memory=settings.device_memory)


def assemble(
    runner: Runner,
    tokenizer: Tokenizer,
    *,
    model: str,
    device: str,
    weights: str,
    blocks: Mapping[str, int] | None = None,
    device_memory: DeviceMemory | None = None,
    parts: tuple[DevicePart, ...] = (),
    num_slots: int | None = None,
    own_states: LocalTable | None = None,
    cache: StateCache | None = None,
    folders: Mapping[str, OwnedFolder] | None = None,
    load_runner: LoadRunner | None = None,
    states: StateStore | None = None,
    store: OpenStore | None = None,
    loras: Sequence[LoraChoice] = (),
    chat_template: ChatTemplate | None = None,
    drafts: DraftSettings = NO_DRAFTS,
    heads: TaskHeads | None = None,
    reranker: Reranker | None = None,
) -> EngineParts:
    """Create an engine's parts from a loaded runner and tokenizer, with the `EngineInfo` that clients may read.

    `num_slots` None means all slots of the runner. `own_states` None means an empty store, `states` None means
    `own_states`, and `chat_template` None means World's.
    """
    embedding = EmbeddingInfo(runner.shape.width, tuple(TASKS), None if reranker is None else reranker.name)
    info = EngineInfo(
        model=model,
        shape=runner.shape,
        device=device,
        weights=weights,
        num_slots=num_slots or runner.num_slots,
        max_logprobs=min(MAX_LOGPROBS, runner.shape.vocab_size),
        tokenizer=tokenizer.name,
        created=int(time.time()),
        blocks=blocks or {},
        device_memory=device_memory,
        parts=parts,
        folders={use: folder.path for use, folder in (folders or {}).items()},
        loras=tuple(loras),
        chat_template=chat_template or WorldTemplate(),
        special_tokens=tokenizer.special_tokens,
        max_draft=drafts.max_tokens if drafts.spare_slots else 0,
        embedding=None if heads is None else embedding,
    )
    own_states = own_states or make_state_store(runner.shape, model)
    states = states or StateStore(own_states)
    return EngineParts(
        info, runner, tokenizer, own_states, cache, folders or {}, load_runner, states, store, drafts, heads, reranker
    )


def own_folders(config: CacheConfig, states: StateSettings) -> Iterator[tuple[str, OwnedFolder]]:
    """Lock the folders that only this process may write to; yield each lock after its use, "cache" or "states".

    A read-only folder of states is not locked; that is logged.
    """
    if config.disk is not None:
        yield "cache", OwnedFolder(config.disk.folder, "cache folder", CACHE_LOCK)
    if states.folder is None:
        return
    if states.folder.is_dir() and not os.access(states.folder, os.W_OK):
        _log.warning("the folder of states, %s, is read-only: no state can be kept in it", states.folder)
    else:
        yield "states", OwnedFolder(states.folder, "folder of states", STATES_LOCK)


def _open_cache(
    runner: Runner, first_slab: int, fingerprint: str, config: CacheConfig, store: OpenStore | None
) -> StateCache | None:
    """Create the state cache, with the runner's slots from `first_slab` on; None if `config` keeps nothing."""
    if config.keeps_nothing:
        return None
    num_slabs = runner.num_slots - first_slab
    pool = SlotPool(runner, first_slab, num_slabs) if num_slabs > 0 else None
    return make_cache(runner.shape, fingerprint, runner, config, pool, store=store)
