"""The store of conversations and responses: bounds, shared turns, expiry, threads, restarts, kills and damage."""

from __future__ import annotations

import json
import logging
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError, StorageError
from rnn_engine_server.apis.openai.kept import ConversationStore
from rnn_engine_server.apis.openai.kept_file import FILE, History, Kept
from rnn_engine_server.apis.openai.response_items import KeptItem
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.store.folder import Store

KEY = "0123456789abcdef" * 2


def said(text: str, item_id: str = "msg_1") -> KeptItem:
    part = {"type": "input_text", "text": text}
    return KeptItem.of({"id": item_id, "type": "message", "role": "user", "content": [part]})


def answer(key: str, text: str = "yes") -> Mapping[str, Any]:
    """Return a response whose id has the given key, with one item."""
    item = {"id": f"msg_{key}0000", "type": "message", "content": [{"type": "output_text", "text": text}]}
    return {"id": f"resp_{key}", "status": "completed", "output": [item]}


def test_a_full_disk_can_be_read_and_deletions_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores, seen = Stores(tmp_path), list[bool]()
    store, reserve = stores.open(), tmp_path / f"{FILE}-reserve"
    first, second = (store.create("ann", [said("hello")], {}) for _ in range(2))
    connection, delete = store._file._connection, store._file.delete
    before = connection.total_changes
    assert store.conversation("ann", first.id).id == first.id
    assert len(store.conversation_history("ann", first.id).items) == 1
    assert connection.total_changes == before

    def watch(kept: Kept) -> None:
        seen.append(reserve.exists())
        delete(kept)

    monkeypatch.setattr(store._file, "delete", watch)
    store.delete("ann", first.id)
    monkeypatch.setattr("rnn_engine_server.apis.openai.kept_file._free_bytes", lambda _: 0)
    store.delete("ann", second.id)
    assert (seen, reserve.exists()) == ([True, False], True)
    stores.close()


class Stores:
    """Opens stores over one folder, or over a temporary file, with a clock that a test sets."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.now = 1000.0
        self._close: Callable[[], object] = bool

    def open(self, **limits: int) -> ConversationStore:
        """Close the store that is open, and open one with these limits."""
        self.close()
        files = Store(self.folder, clock=lambda: self.now)
        store = ConversationStore(files, Limits(**limits))

        def close() -> None:
            store.close()
            files.close()

        self._close = close
        return store

    def close(self) -> None:
        self._close()


@pytest.fixture
def stores() -> Iterator[Stores]:
    stores = Stores()
    yield stores
    stores.close()


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path)
    yield stores
    stores.close()


def keep(store: ConversationStore, key: str, text: str = "yes", owner: str = "", before: History | None = None) -> str:
    """Keep a response, and return its id."""
    response = answer(key, text)
    store.add_response(owner, response, [said("why?")], before or History(), None, keep=True)
    return str(response["id"])


def kept(store: ConversationStore, *ids: str, owner: str = "") -> list[str]:
    """Return those of the responses and conversations that are kept."""
    found = []
    for kept_id in ids:
        with suppress(NotFoundError):
            find = store.response if kept_id.startswith("resp") else store.conversation
            found.append(find(owner, kept_id).id)
    return found


def texts(history: History) -> list[str]:
    return [item.load()["content"][0]["text"] for item in history.items]


def test_every_item_has_an_id_of_its_own(stores: Stores) -> None:
    store = stores.open()
    made = store.create("", [said("a"), said("b")], {})
    [added] = store.add("", made.id, [said("c")])
    first, second, third = store.conversation_history("", made.id).items
    assert (first.id, third) == ("msg_1", added)
    assert len({first.id, second.id, third.id}) == 3
    assert (
        json.loads(second.json)
        == second.load()
        == {**first.load(), "id": second.id, "content": second.load()["content"]}
    )


def test_an_answer_beyond_the_bound_on_items_is_kept_and_items_can_be_removed(stores: Stores) -> None:
    store = stores.open(max_messages=2)
    made = store.create("", [said("a"), said("b")], {})
    store.add_response("", answer(KEY), [said("c")], History(), made.id, keep=False)
    items = store.conversation_history("", made.id).items
    assert len(items) == 4
    with pytest.raises(InvalidRequestError, match="max_messages"):
        store.add("", made.id, [said("e")])
    assert store.describe("", made.id, {"a": "b"}).body == b'{"a":"b"}'
    assert store.conversation_history("", made.id).items == items
    assert store.history_bytes("", made.id) == sum(item.num_bytes for item in items)
    store.remove_item("", made.id, items[1].id)
    assert texts(store.conversation_history("", made.id)) == ["a", "c", "yes"]
    with pytest.raises(NotFoundError, match="has no item"):
        store.remove_item("", made.id, items[1].id)


def test_turns_are_shared_and_deleted_with_the_last_that_needs_them(stores: Stores) -> None:
    store = stores.open()
    before, ids = History(), []
    for number in range(20):
        ids.append(keep(store, f"{number:032}", "x" * 1000, before=before))
        before = store.after_response("", ids[-1])
        assert len(before.items) == 2 * (number + 1)
    assert store.usage.num_bytes < 20 * 3000  # each text once
    assert texts(store.after_response("", ids[3])) == ["why?", "x" * 1000] * 4
    for kept_id in ids[:-1]:
        store.delete_response("", kept_id)
    assert store.after_response("", ids[-1]) == before
    store.delete_response("", ids[-1])
    assert (store.usage.values, store.usage.num_bytes) == (0, 0)


def test_what_a_request_continues_may_be_deleted_meanwhile(stores: Stores) -> None:
    store = stores.open()
    first = keep(store, "1" * 32, "one")
    before = store.after_response("", first)
    store.delete_response("", first)
    second = keep(store, "2" * 32, "two", before=before)
    assert texts(store.after_response("", second)) == ["why?", "one", "why?", "two"]
    store.delete_response("", second)
    assert store.usage.num_bytes == 0


def test_a_conversation_changes_and_the_response_before_stays(stores: Stores) -> None:
    store = stores.open()
    made = store.create("", [said("a")], {})
    before = store.conversation_history("", made.id)
    store.add_response("", answer(KEY), [said("b")], before, made.id, keep=True)
    store.remove_item("", made.id, before.items[0].id)
    assert texts(store.conversation_history("", made.id)) == ["b", "yes"]
    store.delete("", made.id)
    assert texts(store.after_response("", f"resp_{KEY}")) == ["a", "b", "yes"]
    store.delete_response("", f"resp_{KEY}")
    assert store.usage.num_bytes == 0


def test_references_find_items_of_answers_alone(stores: Stores) -> None:
    store = stores.open()
    keep(store, KEY, owner="ann")
    reference = {"type": "item_reference", "id": f"msg_{KEY}0000"}
    assert store.resolve("ann", [reference])[0].load()["content"][0]["text"] == "yes"
    for owner, item_id in (("bob", f"msg_{KEY}0000"), ("ann", f"msg_{KEY}0001"), ("ann", "msg_1"), ("ann", KEY)):
        with pytest.raises(NotFoundError, match="has an item"):
            store.resolve(owner, [{"type": "item_reference", "id": item_id}])


def test_references_to_one_answer_read_it_once(stores: Stores) -> None:
    store = stores.open(max_body_bytes=10_000)
    keep(store, "1" * 32, "x" * 6000)
    keep(store, "2" * 32, "x" * 6000)
    first, second = ({"type": "item_reference", "id": f"msg_{key * 32}0000"} for key in "12")
    items = store.resolve("", [first] * 1000)
    assert len({id(item) for item in items}) == 1
    with pytest.raises(InvalidRequestError, match=r"item_reference: .*max_body_bytes"):
        store.resolve("", [first, second])


def test_responses_are_bounded_by_number_and_time(stores: Stores) -> None:
    store = stores.open(max_responses=2, max_response_seconds=10)
    ids = []
    for number in range(3):
        ids.append(keep(store, f"{number:032}"))
        stores.now += 1
    assert kept(store, *ids) == ids[1:]
    stores.now = 1011.0
    assert kept(store, *ids) == ids[2:]
    stores.now = 1012.0
    assert kept(store, *ids) == []
    assert (store.usage.values, store.usage.num_bytes, store.usage.evictions) == (0, 0, 1)


def test_conversations_give_way_by_use(stores: Stores) -> None:
    store = stores.open(max_conversations=2, max_conversation_bytes=4900, max_messages=3)
    other = store.create("bob", [said("x" * 2000)], {})
    first, second = (store.create("ann", [said("a")], {}).id for _ in range(2))
    stores.now += 1
    store.conversation("ann", first)
    stores.now += 1
    third = store.create("ann", [], {}).id
    assert kept(store, first, second, third, owner="ann") == [first, third]
    stores.now += 1
    store.add("ann", third, [said("x" * 1500)])
    assert kept(store, first, third, owner="ann") == [first, third]
    stores.now += 1
    store.add("ann", third, [said("x" * 1000)])
    assert kept(store, first, third, owner="ann") == [third]
    with pytest.raises(InvalidRequestError, match="max_conversation_bytes"):
        store.add("ann", third, [said("x" * 4000)])
    with pytest.raises(InvalidRequestError, match="max_messages"):
        store.create("ann", [said("a")] * 4, {})
    assert kept(store, third, owner="ann") == [third]
    assert store.conversation_history("bob", other.id).items


def test_what_is_too_large_by_itself_is_dropped_alone(stores: Stores) -> None:
    store = stores.open(max_conversation_bytes=10_000)
    first = keep(store, "1" * 32)
    made = store.create("", [said("a")], {})
    large = keep(store, "2" * 32, "x" * 20_000)
    assert kept(store, first, large) == [first]
    store.add_response("", answer(KEY, "x" * 20_000), [], History(), made.id, keep=False)
    assert kept(store, first, made.id) == [first]
    assert store.usage.evictions == 2


def test_who_keeps_most_gives_way(stores: Stores) -> None:
    store = stores.open(max_all_conversation_bytes=25_000)
    anns = keep(store, "a" * 32, owner="ann")
    bobs = []
    for number in range(10):
        stores.now += 1
        bobs.append(keep(store, f"{number:032}", "x" * 8000, owner="bob"))
    assert kept(store, anns, owner="ann") == [anns]
    assert kept(store, *bobs, owner="bob") == bobs[-2:]
    assert (store.usage.values, store.usage.evictions) == (3, 8)


def test_the_store_is_used_by_several_threads(stores: Stores) -> None:
    store = stores.open(max_responses=2)

    def work(thread: int) -> None:
        for number in range(50):
            kept_id = keep(store, f"{thread}{number:031}")
            with suppress(NotFoundError):
                store.delete_response("", kept_id)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))  # raises the error of any of them
    finally:
        sys.setswitchinterval(interval)
    assert store.usage.values <= 2


def test_random_changes_leave_the_counts_right(stores: Stores) -> None:
    """The bytes that are counted are those of the rows, whatever was done in whatever order."""
    store = stores.open(max_responses=8, max_conversations=4, max_conversation_bytes=20_000)
    dice = random.Random(1)
    conversations: list[str] = []
    responses: list[str] = []
    for number in range(300):
        stores.now += 1
        before, conversation = History(), None
        with suppress(NotFoundError):
            match dice.randrange(7):
                case 0:
                    conversations.append(store.create("", [said("x" * dice.randrange(3000))], {}).id)
                case 1 if conversations:
                    history = store.conversation_history("", dice.choice(conversations))
                    if history.items:
                        store.remove_item("", conversations[-1], dice.choice(history.items).id)
                case 2 if responses:
                    store.delete_response("", dice.choice(responses))
                case 3 if conversations:
                    store.delete("", dice.choice(conversations))
                case kind:
                    if kind == 4 and responses:
                        before = store.after_response("", dice.choice(responses))
                    elif kind == 5 and conversations:
                        conversation = dice.choice(conversations)
                        before = store.conversation_history("", conversation)
                    response = answer(f"{number:032}", "x" * dice.randrange(3000))
                    store.add_response("", response, [said("b")], before, conversation, keep=True)
                    responses.append(str(response["id"]))
    connection = store._file._connection
    [turns] = connection.execute("SELECT coalesce(sum(num_bytes), 0) FROM turns").fetchone()
    assert store.usage.num_bytes == turns + sum(each.num_bytes for each in store._file.select("true")) <= 20_000
    [lost] = connection.execute("SELECT count(*) FROM items WHERE turn NOT IN (SELECT number FROM turns)").fetchone()
    wrong = connection.execute(
        "SELECT count(*) FROM turns WHERE uses != (SELECT count(*) FROM kept WHERE turn = turns.number)"
        " + (SELECT count(*) FROM turns AS later WHERE later.parent = turns.number) OR uses = 0"
    ).fetchone()
    assert (lost, wrong) == (0, (0,))


class TestRestarts:
    def test_everything_outlasts_a_restart(self, lasting: Stores) -> None:
        store = lasting.open()
        made = store.create("ann", [said("a")], {"b": "c"})
        store.add_response("ann", answer(KEY), [said("b")], store.conversation_history("ann", made.id), None, keep=True)
        shown = store.response_json("ann", f"resp_{KEY}")
        store = lasting.open()
        assert store.conversation("ann", made.id).body == b'{"b":"c"}'
        assert store.response_json("ann", f"resp_{KEY}") == shown
        assert texts(store.after_response("ann", f"resp_{KEY}")) == ["a", "b", "yes"]
        assert [item.load()["content"][0]["text"] for item in store.response_input("ann", f"resp_{KEY}")] == ["b"]

    def test_a_kill_loses_nothing_that_was_kept(self, lasting: Stores, tmp_path: Path) -> None:
        """The folder is copied after each change, as a kill at that moment leaves it."""
        assert lasting.folder is not None
        store = lasting.open()
        ids: list[str] = []
        for number in range(10):
            ids.append(keep(store, f"{number:032}"))
            folder = tmp_path / f"copy {number}"
            folder.mkdir()
            for path in lasting.folder.glob(f"{FILE}*"):
                shutil.copy(path, folder)
            copies = Stores(folder)
            assert kept(copies.open(), *ids) == ids
            copies.close()

    def test_what_is_deleted_is_no_longer_in_the_file(self, lasting: Stores) -> None:
        assert lasting.folder is not None
        store = lasting.open()
        store.delete("", store.create("", [said("a secret")], {}).id)
        lasting.close()
        assert b"a secret" not in (lasting.folder / FILE).read_bytes()

    @pytest.mark.parametrize("place", [0, 5000])
    def test_a_damaged_file_is_put_aside(self, lasting: Stores, caplog: pytest.LogCaptureFixture, place: int) -> None:
        assert lasting.folder is not None
        store = lasting.open()
        for number in range(50):
            keep(store, f"{number:032}", "x" * 1000)
        lasting.close()
        path = lasting.folder / FILE
        data = bytearray(path.read_bytes())
        data[place : place + 4096] = b"\xff" * 4096
        path.write_bytes(data)
        with caplog.at_level(logging.WARNING):
            store = lasting.open()
        assert "left out" in caplog.text
        assert path.with_name(f"{FILE}.damaged").read_bytes() == data
        assert kept(store, keep(store, KEY)) == [f"resp_{KEY}"]

    @pytest.mark.parametrize("damaged", [b"5", b'{"role": "user', b""])
    def test_a_damaged_item_is_an_error_of_its_own(self, damaged: bytes) -> None:
        with pytest.raises(StorageError, match="the item 'item' was kept and is damaged"):
            KeptItem.stored("item", "message", damaged).load()

    def test_a_file_of_a_later_version_is_refused(self, lasting: Stores) -> None:
        assert lasting.folder is not None
        lasting.open()
        lasting.close()
        with sqlite3.connect(lasting.folder / FILE) as connection:
            connection.execute("PRAGMA user_version = 2")
        connection.close()
        with pytest.raises(StateError, match="its format is 2, of a later version"):
            lasting.open()

    def test_a_full_disk_changes_nothing(self, lasting: Stores) -> None:
        store = lasting.open()
        first = keep(store, KEY)
        store._file._connection.execute("PRAGMA max_page_count = 20")
        with pytest.raises(StorageError, match="full"):
            keep(store, "1" * 32, "x" * 1_000_000)
        store._file._connection.execute("PRAGMA max_page_count = 1000000")
        assert kept(store, first, f"resp_{'1' * 32}") == [first]
        assert store.usage.values == 1
