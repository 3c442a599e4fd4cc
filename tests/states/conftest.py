"""The fixtures of the tests of states: a store that is shared by servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.store_server import StoreServer


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """Yield a store that drops the least recently used states when it is full."""
    server = StoreServer(tmp_path_factory.mktemp("store"), "--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru")
    yield server
    server.kill()
