"""Each attack of `tools.soak.attacks` is what it says: a server answers or refuses it, and goes on answering."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from aiohttp import ClientSession

from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.raw_server import raw_server
from tools.soak.attacks import ATTACKS, KEY

SETTINGS = ServerSettings(auth=AuthSettings((ApiKey.of(KEY, "one", Scope.MANAGE),)))


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_server_survives(name: str) -> None:
    async with raw_server(FakeEngine(), settings=SETTINGS) as server:
        url = f"http://127.0.0.1:{server.port}"
        attacking = asyncio.create_task(ATTACKS[name].run(url))
        await asyncio.wait((attacking,), timeout=0.2)
        async with ClientSession() as session, session.get(f"{url}/health") as response:
            assert response.status == 200
        attacking.cancel()
        with suppress(asyncio.CancelledError):
            await attacking
