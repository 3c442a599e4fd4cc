"""Some hundred damaged requests to the application over the real engine on the CPU cause no fault of the server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from tests.support.http import Client
from tools.fuzz.cases import TRIED_ROUTES, Case, CaseMaker
from tools.fuzz.routes import NOT_IMPLEMENTED, Answer, exported_states, faults, send

CASES = 200


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    engine = await Engine.load(model_path(), LoadSettings("cpu"), num_slots=4)
    async with TestClient(TestServer(make_app(engine, ServerSettings()))) as client:
        yield client


async def test_no_answer_is_the_servers_fault(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    url = str(client.make_url("")).rstrip("/")
    kinds = ("value", "value", "value", "value", "body")
    maker = CaseMaker(TRIED_ROUTES, await exported_states(url), 1, kinds)
    classes = set()
    with caplog.at_level(logging.ERROR):
        for case in map(maker.make, range(CASES)):
            answer = await send(url, case)
            assert list(faults(case, answer)) == [], case
            if answer.status not in (None, NOT_IMPLEMENTED):  # an unread body may cost the answer
                classes.add(answer.status // 100)
    assert classes == {2, 4}
    assert caplog.records == []


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        (Answer(200, b"anything"), 0),
        (Answer(400, b'{"error": {"message": "", "type": "", "param": null, "code": null}}'), 0),
        (Answer(400, b"text"), 1),
        (Answer(500, b'{"error": {"message": "", "type": "", "param": null, "code": null}}'), 1),
        (Answer(None, b""), 1),
        (Answer(None, b"", hung=True), 1),
    ],
)
def test_what_counts_as_a_fault(answer: Answer, number: int) -> None:
    assert len(list(faults(Case(0, "GET /", "value", b"", whole=True), answer))) == number


def test_a_case_depends_on_its_number_alone() -> None:
    makers = [CaseMaker(TRIED_ROUTES, {"full": b"state"}, seed) for seed in (0, 0, 1)]
    first, second, other = ([maker.make(number).data for number in range(50)] for maker in makers)
    assert first == second
    assert first != other
