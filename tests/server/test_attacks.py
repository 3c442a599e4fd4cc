"""The requests of `tools.attack_requests` that are small enough for a test: each is refused, and nothing runs."""

from __future__ import annotations

import io

import pytest

from server.core.bodies import BUDGET
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve
from tools.attack_requests.attacks import ATTACKS, Attack

_UPLOADS = "PUT"


@pytest.mark.parametrize(
    "attack",
    [attack for attack in ATTACKS if attack.method != _UPLOADS and not attack.runs],
    ids=lambda one: one.name,
)
async def test_attacks_are_refused(serve: Serve, attack: Attack) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    response = await client.post(attack.path, data=io.BytesIO(attack.body()))
    assert response.status in (400, 413), await response.text()
    assert engine.requests == []
    assert client.app[BUDGET].held < 1 << 20
