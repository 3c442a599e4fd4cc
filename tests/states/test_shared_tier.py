"""The tier that servers share: others go on from one's states, and a failing store makes no request fail."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, cast

import pytest
import trustme
from valkey import Valkey

from rnn_engine.errors import StateError
from rnn_engine_states.shared.config import StoreOutcome
from rnn_engine_states.shared.keys import BLOCK_TOKENS
from tests.support.shared_caches import SharingServer, serving
from tests.support.store_server import SlowProxy, StoreServer, free_port
from tests.support.toy_states import ROOT, look_up

PROMPT = list(range(1, 21))
LONG = [number % 90 for number in range(1000)]
FILES = "*:file"
TUNED = "1f3a/ann"

Stats: TypeAlias = Mapping[str, Mapping[str, int]]


@pytest.fixture(autouse=True)
def _empty(store: StoreServer) -> None:
    with store.client() as client:
        client.flushall()


def test_what_one_server_has_kept_the_other_goes_on_from(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url) as other:
        assert one.keep(PROMPT)
        assert one.keep(LONG, logits=False)
        assert other.found(PROMPT) == 20
        assert other.found([*PROMPT, 7, 8]) == 20
        assert other.found([*LONG, 5]) == 1000
        assert other.found([9, 9, 9]) == 0
        assert other.counters().read_bytes > 0
        assert one.counters().written_bytes > other.counters().read_bytes / 2
        shared = other.cache.stats().tiers[-1]
        assert (shared.tier, shared.hits, shared.copies) == ("shared", 3, 2)


def test_an_answer_has_the_longest_beginning_that_serves(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url) as other:
        for length in (5, 127, 128, 129, 256, 700):
            one.keep(LONG[:length], logits=length == 128)
        for length, expected in ((1000, 700), (700, 256), (300, 256), (200, 129), (129, 128), (128, 128), (127, 5)):
            with serving(store.url) as fresh:
                assert fresh.found(LONG[:length]) == expected, length
        assert other.cache.inquire(ROOT, LONG, 0, on_done=lambda: None) is None
        other.ask(LONG[:699])
        assert other.cache.peek(ROOT, LONG) == 256


def test_a_path_that_another_server_has_run_is_known_to_lead_on(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url) as other:
        one.keep([*LONG[:300], 7])
        other.ask([*LONG[:300], 8, *LONG[:50]])
        match = look_up(other.cache, [*LONG[:300], 8, *LONG[:50]])
        assert (match.saved, match.known) == (0, 256)  # whole blocks
        other.keep(LONG[:256])
        assert one.found([*LONG[:300], 9]) == 256
        with serving(store.url) as third:
            assert third.found([*LONG[:300], 9]) == 256
        with store.client() as client:
            client.delete(*store.keys("*lengths*"))
        other.cache.drop_all()
        other.keep(LONG[:256])  # the store still has this state
        with serving(store.url) as fourth:
            assert fourth.found([*LONG[:300], 9]) == 256


def test_roots_and_models_keep_apart(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url, model="other") as other:
        one.keep(PROMPT, root=TUNED)
        assert one.found([*PROMPT, 1]) == 0
        assert other.found([*PROMPT, 1], root=TUNED) == 0
        assert one.found([*PROMPT, 1], root=TUNED) == 20


def test_logits_are_added_and_never_lost(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url) as two:
        one.keep(PROMPT, logits=False)
        assert two.found(PROMPT) == 0
        two.keep(PROMPT)
        one.cache.drop_all()
        one.keep(PROMPT, logits=False)
        with serving(store.url) as other:
            assert other.found(PROMPT) == 20


def test_what_the_store_has_is_not_sent_again(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url) as two:
        one.keep(PROMPT)
        two.keep(PROMPT)
        assert (one.counters().written_bytes > 0, two.counters().written_bytes) == (True, 0)


def test_a_server_that_ends_leaves_what_it_had_in_memory(store: StoreServer) -> None:
    with serving(store.url, host=1 << 20) as one:
        one.cache.write_behind()
        one.device.start(PROMPT)
        one.keep(PROMPT)
    with serving(store.url) as other:
        assert other.found([*PROMPT, 1]) == 20


@pytest.mark.parametrize("tokens", [PROMPT, LONG], ids=["one block", "many blocks"])
@pytest.mark.parametrize("logits", [True, False])
def test_everything_there_expires_unless_it_is_read(store: StoreServer, tokens: list[int], logits: bool) -> None:
    with serving(store.url, ttl=1000) as one, store.client() as client:
        one.keep(tokens, logits=logits)
        keys = store.keys()
        assert len(keys) == 2 + -(-len(tokens) // BLOCK_TOKENS)
        assert all(990 <= int(str(client.ttl(key))) <= 1000 for key in keys)
        for key in keys:
            client.expire(key, 10)
        assert one.found([*tokens, 5]) == len(tokens)
        assert store.keys() == keys
        assert all(990 <= int(str(client.ttl(key))) <= 1000 for key in keys)


def damage(store: StoreServer, change: str) -> None:
    [key] = store.keys(FILES)
    with store.client() as client:
        data = bytes(client.get(key))  # type: ignore[arg-type]
        middle = len(data) // 2
        changed = {
            "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "cut": data[:middle],
            "empty": b"",
            "no file": b"\xff" * 100,
        }
        client.set(key, changed[change])


@pytest.mark.parametrize("change", ["flipped", "cut", "empty", "no file"])
def test_a_damaged_value_is_never_used_and_is_deleted(store: StoreServer, change: str) -> None:
    with serving(store.url) as one, serving(store.url) as other:
        one.keep(PROMPT)
        damage(store, change)
        assert other.found([*PROMPT, 1]) == 0
        assert store.keys(FILES) == []
        other.keep(PROMPT)
        assert one.found([*PROMPT, 1]) == 20


def test_a_value_of_other_tokens_or_another_model_is_never_used(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url, model="other") as other, store.client() as client:
        one.keep(PROMPT)
        [key] = store.keys(FILES)
        other.keep(PROMPT)
        [foreign] = [name for name in store.keys(FILES) if name != key]
        client.rename(foreign, key)
        with serving(store.url) as fresh:
            assert fresh.found([*PROMPT, 1]) == 0
        one.cache.drop_all()
        one.keep(list(reversed(PROMPT)))
        [reverse] = store.keys(FILES)
        client.rename(reverse, key)
        with serving(store.url) as fresh:
            assert fresh.found([*PROMPT, 1]) == 0


@pytest.mark.parametrize("pattern", [FILES, "*:checkpoint:*[0-9]", "*:lengths:*"])
def test_a_part_that_gave_way_costs_a_run_and_is_made_again(store: StoreServer, pattern: str) -> None:
    with serving(store.url) as one, serving(store.url) as other:
        one.keep(PROMPT)
        with store.client() as client:
            client.delete(*store.keys(pattern))
        assert other.found([*PROMPT, 1]) == 0
        other.keep(PROMPT)
        with serving(store.url) as third:
            assert third.found([*PROMPT, 1]) == 20


def test_what_the_store_has_dropped_costs_a_run(store: StoreServer) -> None:
    with serving(store.url) as one:
        one.keep(PROMPT)
        with store.client() as client:
            client.flushall()
        assert one.found([*PROMPT, 1]) == 0
        one.keep(PROMPT)
        assert one.found([*PROMPT, 1]) == 20


def fill_up(client: Valkey, room: int) -> None:
    """Fill the store until `room` bytes are left."""
    used = client.info("memory")["used_memory"]  # type: ignore[index]
    client.config_set("maxmemory", used + room)


def test_a_full_store_drops_what_was_not_used_for_longest(tmp_path: Path) -> None:
    small = StoreServer(tmp_path, "--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru")
    try:
        with serving(small.url, vocab=5000) as one, serving(small.url, vocab=5000) as other, small.client() as client:
            assert one.cache.stats().tiers[-1].capacity == 1 << 30
            fill_up(client, 1_000_000)
            prompts = [[number, *PROMPT] for number in range(120)]
            for prompt in prompts:
                one.keep(prompt)
            assert one.counters().outcomes[StoreOutcome.NO_ROOM] == 0
            assert one.counters().written_bytes > 2_000_000
            assert other.found(prompts[-1]) == 21
            assert sum(map(other.found, prompts)) < 21 * 100
    finally:
        small.kill()


def test_a_store_without_room_refuses_and_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small = StoreServer(tmp_path, "--maxmemory", "1gb", "--maxmemory-policy", "noeviction")
    try:
        with serving(small.url, host=1 << 20) as one, small.client() as client:
            fill_up(client, 0)
            for number in range(5):
                one.keep([number, *PROMPT])
            counters = one.counters()
            assert 3 <= counters.outcomes[StoreOutcome.NO_ROOM] <= 8  # some writes were in flight
            assert counters.circuit_open
            assert one.cache.stats().failed_writes >= 3
            assert one.found([0, *PROMPT]) == 21  # in host memory
            client.config_set("maxmemory", 1 << 30)
            one.clock.now += 100
            one.write()
            assert not one.counters().circuit_open
            assert len(small.keys(FILES)) == 5
        assert "the store has no room" in caplog.text
    finally:
        small.kill()


def test_a_store_that_is_killed_and_comes_back_costs_runs_alone(tmp_path: Path) -> None:
    chance = random.Random(1)
    store = StoreServer(tmp_path)
    try:
        with serving(store.url, host=4000) as one, serving(store.url, host=4000) as other:
            for _ in range(5):
                for number in range(10):
                    server = chance.choice((one, other))
                    if number == 5:
                        store.kill()
                    prompt = [chance.randrange(3) for _ in range(chance.randrange(1, 8))]
                    server.found(prompt)
                    server.keep(prompt)
                store.start()
                for server in (one, other):
                    server.clock.now += 100
                    server.found([5])
                    server.write()
                    assert not server.counters().circuit_open
            one.keep(PROMPT)
            assert other.found([*PROMPT, 1]) == 20
            assert one.counters().circuit_openings > 0
    finally:
        store.kill()


def test_a_store_that_is_gone_is_left_alone_after_some_tries(caplog: pytest.LogCaptureFixture) -> None:
    with serving(f"valkey://127.0.0.1:{free_port()}") as one:
        assert "can't be reached" in caplog.text
        for _ in range(10):
            assert one.found(PROMPT) == 0
        counters = one.counters()
        assert counters.circuit_open
        assert counters.outcomes[StoreOutcome.FAILED] == 3


def test_a_slow_store_serves_within_the_time_that_it_may_take_and_is_left_alone_beyond(store: StoreServer) -> None:
    proxy = SlowProxy(store.port, 0.05)
    try:
        with serving(store.url) as one, serving(proxy.url, timeout=10.0) as patient:
            one.keep(PROMPT)
            assert patient.found([*PROMPT, 1]) == 20
            proxy.delay = 0.2
            with serving(proxy.url, timeout=0.05) as other:
                for _ in range(10):
                    assert other.found([*PROMPT, 1]) == 0
                counters = other.counters()
                assert counters.outcomes[StoreOutcome.TIMED_OUT] == 3
                assert counters.circuit_open
                proxy.delay = 0.0
                other.clock.now += 100
                assert other.found([*PROMPT, 1]) in (0, 20)  # a machine may be slower than that
    finally:
        proxy.close()


def test_a_new_connection_asks_for_nothing_but_what_it_was_made_for(store: StoreServer) -> None:
    def set_up(client: Valkey) -> int:
        """Return how often a connection sent a name. An older store lacks that command and counts an error."""
        told, errors = cast("Stats", client.info("commandstats")), cast("Stats", client.info("errorstats"))
        no_calls, no_errors = {"calls": 0}, {"count": 0}
        return told.get("cmdstat_client|setinfo", no_calls)["calls"] + errors.get("errorstat_ERR", no_errors)["count"]

    with store.client() as client:
        before = set_up(client)
        with serving(store.url) as one:
            one.keep(PROMPT)
        assert set_up(client) == before


def test_a_wrong_password_is_told_at_the_start(tmp_path: Path) -> None:
    store = StoreServer(tmp_path, "--requirepass", "sesame")
    try:
        for url in (store.url, store.url.replace("//", "//:wrong@"), store.url.replace("//", "//ann:sesame@")):
            with pytest.raises(StateError, match="the store refuses the command"):
                SharingServer(url)
        with serving(store.url.replace("//", "//:sesame@")) as one:
            one.keep(PROMPT)
            one.cache.drop_all()
            assert one.found([*PROMPT, 1]) == 20
    finally:
        store.kill()


def test_a_cluster_is_refused_at_the_start(tmp_path: Path) -> None:
    store = StoreServer(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    try:
        with pytest.raises(StateError, match="is a cluster; expected Valkey, or Redis 7 or newer, not a cluster"):
            SharingServer(store.url)
    finally:
        store.kill()


def test_tls_wants_the_stores_own_certificate(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    files = {"cert": tmp_path / "cert", "key": tmp_path / "key", "ca": tmp_path / "ca", "other": tmp_path / "other"}
    certificate.cert_chain_pems[0].write_to_path(files["cert"])
    certificate.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    other.cert_pem.write_to_path(files["other"])
    port = free_port()
    options = ["--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(files["ca"])]
    options += ["--tls-cert-file", str(files["cert"]), "--tls-key-file", str(files["key"])]
    store = StoreServer(tmp_path, *options)
    try:
        url = f"valkeys://127.0.0.1:{port}?ssl_ca_certs="
        with serving(f"{url}{files['ca']}") as one:
            one.keep(PROMPT)
            one.cache.drop_all()
            assert one.found([*PROMPT, 1]) == 20
        with serving(f"{url}{files['other']}") as wrong:
            assert wrong.found([*PROMPT, 1]) == 0
            assert wrong.counters().outcomes[StoreOutcome.DONE] == 0
    finally:
        store.kill()


def test_random_servers_agree(store: StoreServer) -> None:
    chance = random.Random(7)
    with serving(store.url, host=2000) as one, serving(store.url) as two, serving(store.url, host=500) as three:
        for _ in range(150):
            server = chance.choice((one, two, three))
            length = chance.choice((1, 2, 3, 127, 128, 129, 130))
            prompt = [*LONG[: length - 1], chance.randrange(3)]
            if chance.random() < 0.5:
                server.keep(prompt, logits=chance.random() < 0.5)
            else:
                server.found(prompt)
            if chance.random() < 0.05:
                server.cache.drop_all()
        with store.client() as client:
            client.flushall()
        assert one.found([*LONG, 1]) in (0, 127, 128, 129, 130)
