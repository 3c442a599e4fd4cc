"""A model with a LoRA through the engine: it runs the merged weights, says so, and goes on from no other state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.model import LoraChoice
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, Started
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.loras import draw_pair, save_ai00
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape

MODEL = random_model(tiny_shape(), seed=3)
PROMPT = list(range(1, 41))
KEY = "blocks.1.att.key"
PAIR = draw_pair(MODEL, f"{KEY}.weight", rank=4)


async def run(path: Path, folder: Path, loras: Sequence[LoraChoice] = ()) -> tuple[int, list[int]]:
    """Return the number of cached prompt tokens, and the answer."""
    cache = CacheConfig(host_capacity=0, device_capacity=0, disk=DiskConfig(folder, 1 << 20, background_bytes=0))
    request = GenerateRequest(PROMPT, max_tokens=8, stop_tokens=(), sampling=SamplingParams(temperature=0.0))
    async with (
        asyncio.timeout(60),
        await Engine.load(path, LoadSettings("cpu", "none", loras=loras), cache=cache, num_slots=1) as engine,
    ):
        assert engine.info.loras == tuple(loras)
        events = [event async for event in engine.generate(request)]
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    return events[0].cached_tokens, [token.token for event in events for token in getattr(event, "tokens", ())]


async def test_it_runs_the_merged_weights_and_shares_no_state_with_the_plain_model(tmp_path: Path) -> None:
    path = save_safetensors(MODEL, tmp_path / "model.safetensors", "f32")
    lora = LoraChoice(save_ai00({KEY: PAIR}, tmp_path / "lora.st"), 200.0)
    merged = {f"{KEY}.weight": MODEL.tensor(f"{KEY}.weight") + 200 / 4 * PAIR[1] @ PAIR[0]}
    by_hand = save_safetensors(TensorModel(MODEL.shape, MODEL.tensors | merged), tmp_path / "merged.safetensors", "f32")
    folder = tmp_path / "cache"
    _, plain = await run(path, folder)
    again, _ = await run(path, folder)
    cached, found = await run(path, folder, [lora])
    cached_again, _ = await run(path, folder, [lora])
    _, expected = await run(by_hand, tmp_path / "other cache")
    assert found == expected != plain
    assert again > 0
    assert cached == 0
    assert cached_again > 0
