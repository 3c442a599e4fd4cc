"""One server with the demo model for all tests of the client packages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.demo_server import demo_server

KEY, OTHER_KEY = "a key", "another key"


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Yield the root URL of the server, which accepts `KEY` and `OTHER_KEY`."""
    keys = (ApiKey.of(KEY, "ann"), ApiKey.of(OTHER_KEY, "bob", Scope.USE))
    with demo_server(ServerSettings(auth=AuthSettings(keys))) as root:
        yield root
