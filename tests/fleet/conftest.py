"""Servers over a fleet of a fake engine in this process, and a fleet of a small model on Ray Serve."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from pytest_aiohttp.plugin import AiohttpClient

from rnn_engine.cli.fleet import load_replica
from rnn_engine.cli.session import EngineChoice
from rnn_engine.fleet.front import open_front
from rnn_engine.fleet.remote import RemoteEngine
from server.app import make_app
from server.settings import ServerSettings
from states.cache.config import CacheConfig
from tests.support.fake_engine import FakeEngine
from tests.support.fleet import fake_fleet
from tests.support.http import Client, Serve
from tests.support.models import random_model, save_safetensors, tiny_shape

APPLICATION = "tiny"
_STARTS = 3  # of Ray, which gives its own processes 15 seconds each


@pytest.fixture
def serve(aiohttp_client: AiohttpClient) -> Serve:
    """Start a server over a fleet of one fake engine and give a client of it."""

    async def start(engine: FakeEngine, settings: ServerSettings | None = None) -> Client:
        fleet, _ = await fake_fleet({"a": engine})
        return await aiohttp_client(make_app(fleet, settings or ServerSettings()))

    return start


@pytest.fixture(scope="session")
def ray_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small random model that works on token ids."""
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_safetensors(random_model(tiny_shape(vocab=96), seed=5), path, "f32")
    return path


@pytest.fixture(scope="session")
def replicas(ray_model: Path) -> Iterator[str]:
    """The name of an application with two replicas of the small model on Ray Serve."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed; pip install 'rnn-engine[fleet]'")
    import ray
    from ray import serve

    from rnn_engine.fleet.cluster import deploy
    from rnn_engine.fleet.deployment import Resources, make_application

    _start_ray()
    load = partial(load_replica, EngineChoice(ray_model, "none", "cpu", 3, CacheConfig()))
    deploy(APPLICATION, make_application(load, replicas=2, slots=3, resources=Resources(0.1)))
    yield APPLICATION
    serve.shutdown()
    ray.shutdown()


@pytest.fixture
async def fleet(replicas: str, ray_model: Path) -> AsyncIterator[RemoteEngine]:
    """An engine over both replicas, which keep nothing of earlier tests."""
    from rnn_engine.fleet.cluster import RayLinks

    front = await asyncio.to_thread(open_front, ray_model, tokenizer="none")
    engine = await RemoteEngine.open(RayLinks(replicas, owned=False), front)
    await engine.drop_cache()
    yield engine
    await engine.close()


def _start_ray() -> None:
    """Join the cluster whose address is in the environment, or start one."""
    from rnn_engine.errors import RnnEngineError
    from rnn_engine.fleet.cluster import start_ray

    for start in range(_STARTS):
        try:
            return start_ray(os.environ.get("RNN_ENGINE_TESTS_RAY"), 2)
        except RnnEngineError:
            if start == _STARTS - 1:
                raise
    return None
