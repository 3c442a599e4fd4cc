"""A fleet of a small model on Ray Serve."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rnn_engine.cli.session import EngineChoice
from rnn_engine.fleet.remote import RemoteEngine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_states.cache.config import CacheConfig

if TYPE_CHECKING:
    from tests.support.ray_fleet import RayFleets


@pytest.fixture
def tiny_choice(tiny_model: Path) -> EngineChoice:
    return EngineChoice(tiny_model, LoadSettings("cpu", "none"), 3, CacheConfig())


@pytest.fixture
async def fleet(ray_fleets: RayFleets, tiny_choice: EngineChoice) -> AsyncIterator[RemoteEngine]:
    """Yield an engine over two replicas with three slots each."""
    engine = await ray_fleets(tiny_choice)
    yield engine
    await engine.close()
