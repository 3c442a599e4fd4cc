"""The settings of engine, server and fleet refuse numbers that are negative or not finite when they are made."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import InvalidRequestError
from rnn_engine.fleet.settings import FleetSettings, Resources
from rnn_engine.loading.kernel_choices import TuneOrder
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.requests import GenerateRequest
from rnn_engine_server.core.settings import ConnectionSettings, Limits, ServerSettings
from rnn_engine_server.telemetry.logs import LogSettings
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.named.quota import Quota
from rnn_engine_states.shared.config import StoreConfig, StoreUrl
from tests.support.engines import HELLO, running
from tests.support.fake_runner import FakeRunner

SETTINGS = (
    ServerSettings(),
    Limits(),
    ConnectionSettings(),
    LogSettings(),
    LoadSettings(),
    TuneOrder(),
    Quota(),
    StateSettings(),
    CacheConfig(),
    DiskConfig(Path()),
    StoreConfig(StoreUrl.parse("valkey://localhost")),
    FleetSettings(),
    Resources(),
)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: type(settings).__name__)
def test_every_number_is_finite_and_not_negative(settings: Any, bad: float) -> None:  # noqa: ANN401
    names = [field.name for field in fields(settings) if re.match(r"(Annotated\[)?(int|float)\b", str(field.type))]
    assert names
    for name in names:
        with pytest.raises(InvalidRequestError) as raised:
            replace(settings, **{name: bad})
        assert raised.value.field == name


@pytest.mark.parametrize("name", ["queue_seconds", "grammar_seconds"])
async def test_an_engine_refuses_a_time_that_is_none(tiny_model: Path, name: str) -> None:
    times: Any = {name: math.nan}
    with pytest.raises(InvalidRequestError, match=f"{name}: nan is not allowed"):
        await Engine.load(tiny_model, LoadSettings("cpu", "none"), **times)


async def test_a_request_refuses_a_deadline_that_is_none() -> None:
    async with running(FakeRunner(HELLO)) as engine:
        with pytest.raises(InvalidRequestError, match="deadline: nan is not allowed"):
            engine.generate(GenerateRequest([1], deadline=math.nan))
