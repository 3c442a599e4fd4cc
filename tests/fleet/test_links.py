"""The links to replicas on Ray, over answers that a test chooses."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from rnn_engine.fleet.cluster import RayLinks
from rnn_engine.fleet.replica import Replica
from rnn_engine.fleet.wire import NOTHING_KNOWN
from tests.support.fake_engine import FakeEngine

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


class Handle:
    """The handle of a deployment. Its replicas answer a broadcast with `answers`."""

    def __init__(self, *answers: object) -> None:
        self._answers = answers

    def broadcast(self, *_: object) -> Handle:
        return self

    async def results_async(self, **_: object) -> list[object]:
        return list(self._answers)


async def test_a_replica_whose_report_fails_is_left_out_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica(FakeEngine(), "a")
    failed = RayTaskError("report", "a traceback", KeyError("a fault"))
    handle = Handle(failed, await replica.report(NOTHING_KNOWN), ActorDiedError())
    monkeypatch.setattr("ray.serve.get_deployment_handle", lambda *_: handle)
    reports = await RayLinks("application", owned=False).survey()
    assert reports is not None
    assert [report.name for report in reports] == ["a"]
    [record] = caplog.records  # one that is gone is no fault
    assert "its report fails" in record.message
    await replica.close()
