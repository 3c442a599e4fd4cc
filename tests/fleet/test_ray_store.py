"""Replicas on Ray Serve with a shared store: others go on from a replica's states when it leaves or dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rnn_engine.cli.replicas import load_replica
from rnn_engine.cli.session import EngineChoice
from rnn_engine.errors import NotFoundError
from rnn_engine.fleet.remote import RemoteEngine, open_front
from rnn_engine.fleet.wire import Links, ReplicaLostError, Report, pack_question, unpack_answer
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import Finished, GenerateRequest, Started, TextDelta
from rnn_engine.sampling.params import SamplingParams
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.frozen import freeze_state
from rnn_engine_states.named.entry import Retention
from rnn_engine_states.shared.config import StoreConfig, StoreUrl
from tests.support.fleet import replica_processes, until
from tests.support.store_server import StoreServer

if TYPE_CHECKING:
    from tests.support.ray_fleet import RayFleets

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

APPLICATION = "shared"
PROMPT = [1 + number * number % 90 for number in range(200)]
REQUEST = GenerateRequest(prompt=PROMPT, max_tokens=8, stop_tokens=(), sampling=SamplingParams(seed=3))


@dataclass(frozen=True, slots=True)
class Shared:
    """An application of one replica, with a store."""

    store: StoreServer
    model: Path
    deploy: Callable[[], None]  # replaces the replica by a new one

    @property
    def config(self) -> StoreConfig:
        return StoreConfig(StoreUrl.parse(self.store.url))

    @asynccontextmanager
    async def fleet(self) -> AsyncIterator[RemoteEngine]:
        """Yield an engine over the application, as in a server."""
        from rnn_engine.fleet.cluster import RayLinks

        front = await asyncio.to_thread(open_front, self.model, LoadSettings(tokenizer="none"), store=self.config)
        engine = await RemoteEngine.open(RayLinks(APPLICATION, owned=False), front)
        yield engine
        await engine.close()


@pytest.fixture(scope="module")
def shared(ray_fleets: RayFleets, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Yield an application of one replica, in the cluster of the other tests."""
    from ray import serve

    from rnn_engine.fleet.cluster import deploy
    from rnn_engine.fleet.deployment import make_application
    from rnn_engine.fleet.settings import FleetSettings, Resources

    store = StoreServer(tmp_path_factory.mktemp("store"))
    cache = CacheConfig(store=StoreConfig(StoreUrl.parse(store.url)))
    load = partial(load_replica, EngineChoice(tiny_model, LoadSettings("cpu", "none"), 3, cache))

    def redeploy() -> None:
        deploy(APPLICATION, make_application(load, FleetSettings(1, resources=Resources(0.1))))

    redeploy()
    yield Shared(store, tiny_model, redeploy)
    serve.delete(APPLICATION)
    store.kill()


async def run(engine: RemoteEngine, request: GenerateRequest) -> tuple[int, list[int]]:
    """Run a request; return the number of its cached prompt tokens, and its answer's tokens."""
    cached, tokens = 0, list[int]()
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            if isinstance(event, Started):
                cached = event.cached_tokens
            elif isinstance(event, TextDelta):
                tokens += [info.token for info in event.tokens]
    return cached, tokens


async def test_what_a_killed_replica_has_run_is_taken_up_from_the_store(shared: Shared) -> None:
    async with shared.fleet() as fleet:
        assert (await run(fleet, REQUEST))[0] == 0
        # a record and a file each at the prompt's end, and at the answer's
        await until(lambda: len(shared.store.keys("*:checkpoint:*")) == 4)
        [process] = replica_processes(APPLICATION)
        process.kill()
        await until(lambda: fleet.health().status == "recovering")
        await until(lambda: fleet.health().status == "ok")
        cached, again = await run(fleet, REQUEST)
        assert cached == len(PROMPT)
        longer = replace(REQUEST, prompt=[*PROMPT, *again, 5], max_tokens=1)
        assert (await run(fleet, longer))[0] == len(PROMPT) + len(again) - 1


async def test_a_call_to_a_replica_that_has_died_fails_at_once(shared: Shared) -> None:
    from rnn_engine.fleet.cluster import RayLinks

    links = RayLinks(APPLICATION, owned=False)
    [report] = await _surveyed(links)
    [process] = replica_processes(APPLICATION)
    process.kill()
    [new] = await _surveyed(links, report.name)
    with pytest.raises(ReplicaLostError, match="it has died"):
        await links.ask(report.name, pack_question("drop_cache"))
    assert unpack_answer(await links.ask(new.name, pack_question("drop_cache"))) == 0


async def test_a_replica_that_leaves_ends_its_requests_and_writes_their_states(shared: Shared) -> None:
    """The next replica takes requests only when its model is loaded, and goes on from these states."""
    request = replace(REQUEST, prompt=PROMPT[::-1], max_tokens=2000)
    async with shared.fleet() as fleet:
        running = asyncio.create_task(run(fleet, request))
        await until(lambda: len(fleet.slot_uses()) == 1)
        before = set(replica_processes(APPLICATION))
        await asyncio.to_thread(shared.deploy)
        _, tokens = await running
        assert len(tokens) == request.max_tokens
        await until(lambda: fleet.health().status == "ok" and not before & set(replica_processes(APPLICATION)))
        assert (await run(fleet, request)) == (len(PROMPT), tokens)
        longer = replace(request, prompt=[*request.prompt, *tokens, 5], max_tokens=1)
        assert (await run(fleet, longer))[0] == len(PROMPT) + len(tokens) - 1


async def test_fronts_share_named_states_and_leases(shared: Shared) -> None:
    async with shared.fleet() as first, shared.fleet() as second:
        async with aclosing(first.generate(replace(REQUEST, keep_end=True))) as events:
            finished = [event async for event in events][-1]
        assert isinstance(finished, Finished)
        end = finished.end
        assert end is not None
        frozen = freeze_state(end.state, first.info.shape, "test", logits=end.logits)
        put = await first.states.put("story", frozen, Retention("ann", 60), source="test")
        found = await second.states.get("story")
        assert (found.id, found.frozen.digest, found.owner) == (put.id, frozen.digest, "ann")
        going_on = replace(REQUEST, prompt=[5, 6], initial_state=found.frozen.for_request)
        assert (await run(second, going_on))[1] == (await run(first, going_on))[1]
        await second.states.delete("story")
        with pytest.raises(NotFoundError):
            await first.states.get("story")


async def _surveyed(links: Links, but: str = "") -> Sequence[Report]:
    """Return the reports of the replicas except `but`, once there are any."""
    async with asyncio.timeout(60):
        while not (found := [report for report in await links.survey() or () if report.name != but]):
            await asyncio.sleep(0.05)
    return found
