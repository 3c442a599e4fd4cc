"""From a model file and settings to the parts of an engine: runner, tokenizer, cache of states, named states.

All of this blocks while it reads, uploads and compiles.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rnn_engine.forward import GpuRunner, Progress, WeightFormatName
from rnn_engine.interface import EngineInfo
from rnn_engine.loading.model import open_model
from rnn_engine.loading.runner import load_runner
from rnn_engine.loading.states import StateSettings, make_registry, open_registry
from rnn_engine.tokenizer import Tokenizer, load_tokenizer
from rnn_engine.types import Runner
from states.cache.cache import StateCache
from states.cache.config import CacheConfig
from states.cache.device import SlotPool
from states.cache.make import make_cache
from states.files.folder import CACHE_LOCK, STATES_LOCK, OwnedFolder
from states.named.registry import StateRegistry

MAX_LOGPROBS = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine runs on. Sequences run in the first `info.num_slots` of the runner's slots."""

    info: EngineInfo
    runner: Runner
    tokenizer: Tokenizer
    states: StateRegistry
    cache: StateCache | None
    folders: tuple[OwnedFolder, ...]  # of the cache and of states

    def close(self) -> None:
        """Write what is to be kept, and free the device and the folders. For the thread that owns the runner."""
        with ExitStack() as last_first:
            last_first.callback(self.runner.close)
            for folder in self.folders:
                last_first.callback(folder.release)
            if self.cache is not None:
                last_first.callback(self.cache.close)


def open_parts(
    path: Path,
    *,
    name: str | None,
    tokenizer: str,
    device: str,
    weights: WeightFormatName,
    num_slots: int,
    cache: CacheConfig | None,
    states: StateSettings,
    progress: Progress,
) -> EngineParts:
    """See `Engine.load`. Nothing stays open where it fails."""
    weights = "f32" if device == "cpu" else weights
    config = CacheConfig(device_capacity=0, host_capacity=0) if cache is None else cache
    with ExitStack() as undo, open_model(path) as model:
        folders: list[OwnedFolder] = []
        for folder in _own_folders(config, states):
            undo.callback(folder.release)
            folders.append(folder)
        chosen = load_tokenizer(tokenizer, path, model.shape.vocab_size)
        registry = open_registry(model, states)
        runner = load_runner(
            model,
            device,
            weights=weights,
            num_slots=num_slots,
            spare_bytes=config.device_capacity,
            warm_up=True,
            progress=progress,
        )
        undo.callback(runner.close)
        kept = _open_cache(runner, num_slots, f"{model.fingerprint} {weights}", config)
        undo.pop_all()
    on_gpu = runner if isinstance(runner, GpuRunner) else None
    return assemble(
        runner,
        chosen,
        model=name or path.stem,
        device=device if on_gpu is None else on_gpu.device.info.name,
        weights=weights,
        device_bytes=None if on_gpu is None else on_gpu.allocated_bytes,
        num_slots=num_slots,
        states=registry,
        cache=kept,
        folders=tuple(folders),
    )


def assemble(
    runner: Runner,
    tokenizer: Tokenizer,
    *,
    model: str,
    device: str,
    weights: str,
    device_bytes: int | None = None,
    num_slots: int | None = None,
    states: StateRegistry | None = None,
    cache: StateCache | None = None,
    folders: tuple[OwnedFolder, ...] = (),
) -> EngineParts:
    """The parts and what clients may know of them. `num_slots` None is all of the runner's; `states` None is none."""
    info = EngineInfo(
        model=model,
        shape=runner.shape,
        device=device,
        weights=weights,
        num_slots=num_slots or runner.num_slots,
        max_logprobs=min(MAX_LOGPROBS, runner.shape.vocab_size),
        tokenizer=tokenizer.name,
        created=int(time.time()),
        device_bytes=device_bytes,
    )
    return EngineParts(info, runner, tokenizer, states or make_registry(runner.shape, model), cache, folders)


def _own_folders(config: CacheConfig, states: StateSettings) -> Iterator[OwnedFolder]:
    """Take the folders that this process alone may write to."""
    if config.disk is not None:
        yield OwnedFolder(config.disk.folder, "cache folder", CACHE_LOCK)
    if states.folder is None:
        return
    if states.folder.is_dir() and not os.access(states.folder, os.W_OK):
        _log.warning("the folder of states, %s, is read-only: no state can be kept in it", states.folder)
    else:
        yield OwnedFolder(states.folder, "folder of states", STATES_LOCK)


def _open_cache(runner: Runner, num_slots: int, fingerprint: str, config: CacheConfig) -> StateCache | None:
    """A cache whose device tier are the runner's slots after the first `num_slots`."""
    if config.keeps_nothing:
        return None
    num_slabs = runner.num_slots - num_slots
    pool = SlotPool(runner, num_slots, num_slabs) if num_slabs > 0 else None
    return make_cache(runner.shape, fingerprint, runner, config, pool)
