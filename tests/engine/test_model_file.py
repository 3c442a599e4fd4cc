"""An engine depends on every byte of its model's file at the time of loading, and not on the file afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest, Started, TextDelta
from rnn_engine.sampling.params import SamplingParams
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.pth import save_pth

SHAPE = tiny_shape(vocab=50)
SAVE: dict[str, Callable[[TensorModel, Path], Path]] = {".safetensors": save_safetensors, ".pth": save_pth}


def overwrite(path: Path) -> None:
    """Write another model into the same file."""
    other = SAVE[path.suffix](random_model(SHAPE, seed=2), path.with_name(f"other{path.suffix}"))
    path.write_bytes(other.read_bytes())


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def delete(path: Path) -> None:
    path.unlink()


async def ask(engine: Engine) -> tuple[int, list[int]]:
    """Ask with a prompt of all ids of the vocabulary, so that every row of the embedding is looked up.

    Returns the number of cached tokens, and the answer's tokens.
    """
    prompt = list(range(SHAPE.vocab_size))
    request = GenerateRequest(prompt, max_tokens=8, stop_tokens=(), sampling=SamplingParams(temperature=0.0))
    events = [event async for event in engine.generate(request)]
    (cached,) = (event.cached_tokens for event in events if isinstance(event, Started))
    return cached, [info.token for event in events if isinstance(event, TextDelta) for info in event.tokens]


@pytest.mark.parametrize("ending", SAVE)
@pytest.mark.parametrize(
    ("device", "change"), [("cpu", overwrite), ("cpu", truncate), ("cpu", delete), ("0", overwrite), ("0", truncate)]
)
async def test_answers_do_not_depend_on_the_file(
    device: str, change: Callable[[Path], None], ending: str, tmp_path: Path
) -> None:
    path = SAVE[ending](random_model(SHAPE, seed=1), tmp_path / f"model{ending}")
    async with await Engine.load(path, LoadSettings(device), num_slots=1, cache=None) as engine:
        before = await ask(engine)
        change(path)
        assert await ask(engine) == before


async def test_states_of_a_model_that_differs_in_one_byte_are_not_continued(tmp_path: Path) -> None:
    model = random_model(SHAPE, seed=1)
    path = save_safetensors(model, tmp_path / "model.safetensors", "f16")
    cache = CacheConfig(disk=DiskConfig(tmp_path / "states"))
    for content, cached in ((path.read_bytes(), 0), (path.read_bytes(), SHAPE.vocab_size), (_changed(path, model), 0)):
        path.write_bytes(content)
        async with await Engine.load(path, LoadSettings("cpu"), num_slots=1, cache=cache) as engine:
            assert (await ask(engine))[0] == cached


def _changed(path: Path, model: TensorModel) -> bytes:
    """Return the file's bytes with one byte changed in the middle of a row of the embedding."""
    content = bytearray(path.read_bytes())
    row = model.tensor("emb.weight")[41].astype(np.float16).tobytes()
    content[content.index(row) + len(row) // 2] ^= 1
    return bytes(content)
