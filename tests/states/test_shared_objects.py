"""Bodies of checkpoints in an object store, with their index in the store: all that holds of the store holds with it,
and it keeps its bound.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rnn_engine.errors import InvalidRequestError, StateError
from rnn_engine_states.shared.config import ObjectsConfig
from tests.states import test_shared_tier
from tests.states.test_shared_tier import (  # noqa: F401
    _empty,
    test_a_path_that_another_server_has_run_is_known_to_lead_on,
    test_a_server_that_ends_leaves_what_it_had_in_memory,
    test_an_answer_has_the_longest_beginning_that_serves,
    test_logits_are_added_and_never_lost,
    test_random_servers_agree,
    test_roots_and_models_keep_apart,
    test_what_one_server_has_kept_the_other_goes_on_from,
    test_what_the_store_has_dropped_costs_a_run,
    test_what_the_store_has_is_not_sent_again,
)
from tests.support.shared_caches import serving
from tests.support.store_server import StoreServer, free_port

pytest.importorskip("obstore", reason="no object store is tested: pip install 'rnn-engine[objects]'")

PROMPT = list(range(1, 21))
USED, SIZES, TOTAL = (f"rnn-engine:1:objects:{part}" for part in ("used", "sizes", "total"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the objects, which every server of these tests uses."""
    place = tmp_path / "objects"
    monkeypatch.setattr(test_shared_tier, "serving", partial(serving, objects=objects_in(place)))
    return place


def objects_in(folder: Path, capacity: int = 1 << 30) -> ObjectsConfig:
    return ObjectsConfig(folder.as_uri(), capacity)


def files_in(folder: Path) -> dict[str, int]:
    """Return the sizes of objects by key."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)).replace("/", ":"): path.stat().st_size for path in found}


def index_of(store: StoreServer) -> dict[str, int]:
    """Return the sizes in the index, after checking that its parts agree."""
    with store.client() as client:
        sizes = {key.decode(): int(size) for key, size in client.hgetall(SIZES).items()}  # type: ignore[union-attr]
        used = {key.decode() for key in client.zrange(USED, 0, -1)}  # type: ignore[union-attr]
        total = int(client.get(TOTAL) or 0)  # type: ignore[arg-type]
    assert used == sizes.keys()
    assert total == sum(sizes.values())
    return sizes


def test_bodies_are_objects_and_the_store_has_their_index(store: StoreServer, folder: Path) -> None:
    with serving(store.url, objects=objects_in(folder)) as one:
        one.keep(PROMPT)
        one.keep([*PROMPT, 5])
        assert len(files_in(folder)) == 2
        assert index_of(store) == files_in(folder)
        assert all(len(client_value) < 10 for client_value in values_of(store))


def values_of(store: StoreServer) -> list[bytes]:
    with store.client() as client:
        return [bytes(client.get(key)) for key in store.keys("*:file")]  # type: ignore[arg-type]


def test_the_longest_unused_bodies_give_way(store: StoreServer, folder: Path) -> None:
    with serving(store.url, objects=objects_in(folder)) as one:
        one.keep(PROMPT)
    age(store, 1000)
    [size] = files_in(folder).values()
    prompts = [[number, *PROMPT[1:]] for number in range(30, 36)]
    with serving(store.url, objects=objects_in(folder, 3 * size)) as one:
        assert one.cache.tiers[-1].queue.capacity == 3 * size
        for number, prompt in enumerate(prompts[:3]):
            one.keep(prompt)
            age(store, 100 - number)
        assert one.found([*prompts[0], 5]) == 20  # which is used now
        for prompt in prompts[3:5]:
            one.keep(prompt)
        assert index_of(store) == files_in(folder)
        with serving(store.url, objects=objects_in(folder, 3 * size)) as other:
            found = [other.found([*prompt, 5]) for prompt in [PROMPT, *prompts[:5]]]
        assert found == [0, 20, 0, 0, 20, 20]


def age(store: StoreServer, seconds: int) -> None:
    """Set the last use of everything in the index back by `seconds`."""
    with store.client() as client:
        for key in client.zrange(USED, 0, -1):  # type: ignore[union-attr]
            client.zincrby(USED, -seconds, key)


def test_a_body_larger_than_the_bound_is_not_kept(store: StoreServer, folder: Path) -> None:
    with serving(store.url, objects=objects_in(folder, 100)) as one:
        one.keep(PROMPT)
        assert (index_of(store), files_in(folder)) == ({}, {})


def test_bodies_that_nobody_uses_go_when_others_come(store: StoreServer, folder: Path) -> None:
    with serving(store.url, objects=objects_in(folder), ttl=1000) as one:
        one.keep(PROMPT)
        one.keep([7, *PROMPT])
        age(store, 1001)
        one.found([*PROMPT, 5])
        one.keep([8, *PROMPT])
        assert index_of(store) == files_in(folder)
        assert len(files_in(folder)) == 2


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, None])
def test_an_object_that_is_damaged_or_gone_costs_a_run(
    store: StoreServer,
    folder: Path,
    data: bytes | None,
) -> None:
    with serving(store.url, objects=objects_in(folder)) as one, serving(store.url, objects=objects_in(folder)) as two:
        one.keep(PROMPT)
        [path] = (path for path in folder.rglob("*") if path.is_file())
        path.unlink() if data is None else path.write_bytes(data)
        assert two.found([*PROMPT, 1]) == 0
        assert (index_of(store), files_in(folder)) == ({}, {})
        two.keep(PROMPT)
        with serving(store.url, objects=objects_in(folder)) as third:
            assert third.found([*PROMPT, 1]) == 20


def test_an_object_store_that_is_gone_costs_no_request_and_is_left_alone(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    with serving(store.url, host=1 << 20, timeout=0.2, objects=ObjectsConfig("s3://bucket/states")) as one:
        assert "s3://bucket/states: the store does not answer in time; going on without it" in caplog.text
        for number in range(5):
            one.keep([number, *PROMPT])
            assert one.found([number, *PROMPT, 1]) == 21
        counters = one.counters()
        assert counters.circuit_open
        assert index_of(store) == {}
    assert "writing objects to" in caplog.text


def test_places_that_are_none(store: StoreServer, tmp_path: Path) -> None:
    for url in ("http://host/path", "s3:///path", "file://", "bucket"):
        with pytest.raises(InvalidRequestError, match="expected s3://BUCKET/PREFIX"):
            ObjectsConfig(url)
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(StateError, match="the object store can't be opened"),
        serving(store.url, objects=objects_in(tmp_path / "file" / "below")),
    ):
        pass
