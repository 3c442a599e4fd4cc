"""Two replicas on Ray Serve: the tests that need real processes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from rnn_engine.cli.replicas import start_fleet
from rnn_engine.cli.session import EngineChoice
from rnn_engine.engine import Engine
from rnn_engine.errors import InvalidGrammarError, InvalidRequestError, RnnEngineError, UnavailableError
from rnn_engine.fleet.remote import RemoteEngine
from rnn_engine.fleet.settings import FleetSettings, Resources
from rnn_engine.grammar import Grammar
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest, TextDelta
from rnn_engine.sampling.params import SamplingParams
from tests.support.fleet import until

if TYPE_CHECKING:
    from tests.support.ray_fleet import RayFleets

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

FEW = Resources(cpus=0.1)
LONG = GenerateRequest(prompt=[1, 7, 9], max_tokens=100_000, stop_tokens=())


def seeded(seed: int, max_tokens: int = 40) -> GenerateRequest:
    return replace(LONG, max_tokens=max_tokens, sampling=SamplingParams(seed=seed))


async def tokens_of(engine: RemoteEngine | Engine, request: GenerateRequest) -> list[int]:
    async with aclosing(engine.generate(request)) as events:
        deltas = [event async for event in events if isinstance(event, TextDelta)]
    return [info.token for delta in deltas for info in delta.tokens]


async def test_tokens_are_those_of_one_engine(fleet: RemoteEngine, tiny_model: Path) -> None:
    requests = [seeded(seed) for seed in range(8)]
    async with await Engine.load(tiny_model, LoadSettings("cpu", "none"), num_slots=3) as alone:
        expected = await asyncio.gather(*(tokens_of(alone, request) for request in requests))
    assert await asyncio.gather(*(tokens_of(fleet, request) for request in requests)) == expected


async def test_cancelling_frees_the_slot_of_the_replica(fleet: RemoteEngine) -> None:
    events = fleet.generate(LONG)
    await anext(events)
    await until(lambda: len(fleet.slot_uses()) == 1)
    await events.aclose()
    await until(lambda: len(fleet.slot_uses()) == 0)


async def test_errors_are_those_of_one_engine(fleet: RemoteEngine) -> None:
    with pytest.raises(InvalidRequestError, match="expected a token id from 0 to 95"):
        await tokens_of(fleet, replace(LONG, prompt=[96]))
    with pytest.raises(InvalidGrammarError, match="a regex that can be used"):
        await tokens_of(fleet, replace(LONG, grammar=Grammar("regex", "(")))


async def test_a_replica_that_is_killed(
    fleet: RemoteEngine, ray_fleets: RayFleets, tiny_choice: EngineChoice, tiny_model: Path
) -> None:
    """Only requests whose answers have begun on the killed replica end with an error. It says when to try again."""
    running = [asyncio.create_task(tokens_of(fleet, seeded(seed, 3000))) for seed in range(6)]
    await until(lambda: len(fleet.slot_uses()) == 6)
    ray_fleets.processes(tiny_choice)[0].kill()
    found = await asyncio.gather(*running, return_exceptions=True)
    lost = [error for error in found if isinstance(error, BaseException)]
    assert all(isinstance(error, UnavailableError) and error.retry_after > 0 for error in lost), lost
    assert len(lost) == 3
    async with await Engine.load(tiny_model, LoadSettings("cpu", "none"), num_slots=3) as alone:
        for seed, tokens in enumerate(found):
            if isinstance(tokens, list):
                assert tokens == await tokens_of(alone, seeded(seed, 3000))
    assert len(await tokens_of(fleet, seeded(1))) == 40
    await until(lambda: fleet.info.num_slots == 6)  # another one was started in its place


async def test_replicas_that_can_not_be_loaded(ray_fleets: RayFleets, tiny_choice: EngineChoice) -> None:
    from ray import serve

    settings, before = FleetSettings(replicas=1, resources=FEW), set(serve.status().applications)
    with pytest.raises(
        RnnEngineError, match="the replicas could not be started: no device 'nosuch'; expected one of 0 = "
    ):
        await start_fleet(settings, replace(tiny_choice, loading=LoadSettings("nosuch", "none")), unheard)
    assert set(serve.status().applications) == before


async def test_replicas_of_a_config_file_are_taken_and_left(
    ray_fleets: RayFleets, tiny_choice: EngineChoice, tiny_model: Path
) -> None:
    """Deploy deploy/serve.yaml as Serve reads it, with a model and resources of this machine."""
    described = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "serve.yaml").read_text())
    name = await ray_fleets.build(described, {"model": str(tiny_model), "device": "cpu", "slots": 3})
    for _ in range(2):
        fleet = await start_fleet(FleetSettings(application=name), tiny_choice, unheard)
        assert len(await tokens_of(fleet, seeded(1))) == 40
        await fleet.close()
    with pytest.raises(
        InvalidRequestError, match=f"--application: no application of replicas is called 'none'; there are: .*{name}"
    ):
        await start_fleet(FleetSettings(application="none"), tiny_choice, unheard)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ray://127.0.0.1:10001", "expected HOST:PORT or auto"),
        ("127.0.0.1", "expected HOST:PORT or auto"),
        ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"),
    ],
)
async def test_an_address_without_a_cluster(
    ray_fleets: RayFleets, tiny_choice: EngineChoice, address: str, words: str
) -> None:
    with pytest.raises(RnnEngineError, match=words):
        await start_fleet(FleetSettings(address=address), tiny_choice, unheard)


def unheard(_what: str, _done: int, _total: int) -> None:
    pass
