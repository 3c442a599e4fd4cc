"""The store of conversations and responses: bounds, shared turns, expiry, restarts, kills and damage."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from rnn_engine.database import Transaction
from rnn_engine.errors import InvalidRequestError, NotFoundError, StorageError
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.store import turns
from rnn_engine_server.store.folder import Store
from rnn_engine_server.store.owners import Cursor
from rnn_engine_server.store.turns import History, Place, StoredItem

KEY = "0123456789abcdef" * 2
DATABASE = "jobs.sqlite"
ALL = Cursor(1000, ascending=True)


def said(text: str, item_id: str = "msg_1") -> StoredItem:
    part = {"type": "input_text", "text": text}
    return StoredItem.of({"id": item_id, "type": "message", "role": "user", "content": [part]})


def answer(key: str, text: str = "yes") -> Mapping[str, Any]:
    """Return a response whose id has the given key, with one item."""
    item = {"id": f"msg_{key}0000", "type": "message", "content": [{"type": "output_text", "text": text}]}
    return {"id": f"resp_{key}", "status": "completed", "background": False, "conversation": None, "output": [item]}


class Stores:
    """Opens stores over one folder, or over a temporary one, with a clock that a test sets."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.now = 1000.0
        self._store: Store | None = None

    def open(self, **limits: int) -> Store:
        """Close the store that is open, and open one with these limits."""
        self.close()
        self._store = Store(self.folder, Limits(**limits), clock=lambda: self.now)
        return self._store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


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


async def keep(store: Store, key: str, text: str = "yes", owner: str = "", before: History | None = None) -> str:
    """Keep a response, and return its id."""
    response = answer(key, text)
    await store.responses.add(owner, response, [said("why?")], before or History(), None, keep=True)
    return str(response["id"])


async def kept(store: Store, *ids: str, owner: str = "") -> list[str]:
    """Return those of the responses and conversations that are kept."""
    found = []
    for kept_id in ids:
        with suppress(NotFoundError):
            kind = store.responses if kept_id.startswith("resp") else store.conversations
            found.append((await kind.get(owner, kept_id)).id)
    return found


async def history(store: Store, kept_id: str, owner: str = "") -> History:
    kind = store.responses if kept_id.startswith("resp") else store.conversations
    found = await kind.history(owner, kept_id)
    items = await store.histories.turns.read(found.places, owner)
    assert sum(item.num_bytes for item in items) == sum(place.num_bytes for place in found.places)
    return History(found.turn, found.places, items)


async def texts(store: Store, kept_id: str, owner: str = "") -> list[str]:
    return [item.load()["content"][0]["text"] for item in (await history(store, kept_id, owner)).items]


def rows(store: Store, query: str) -> list[Any]:
    return store._database.read_now(lambda db: db.execute(query).fetchall())


async def test_every_item_has_an_id_of_its_own(stores: Stores) -> None:
    store = stores.open()
    made = await store.conversations.create("", [said("a"), said("b")], {})
    [added] = await store.conversations.add("", made.id, [said("c")])
    first, second, third = (await history(store, made.id)).items
    assert (first.id, third) == ("msg_1", added)
    assert len({first.id, second.id, third.id}) == 3
    assert (
        json.loads(second.json)
        == second.load()
        == {**first.load(), "id": second.id, "content": second.load()["content"]}
    )


async def test_items_come_in_pages(stores: Stores) -> None:
    store = stores.open()
    made = await store.conversations.create("", [said(text, text) for text in "ab"], {})
    for text in "cde":
        await store.conversations.add("", made.id, [said(text, text)])

    async def listed(cursor: Cursor) -> tuple[str, bool]:
        page = await store.conversations.item_page("", made.id, cursor)
        return "".join(item.id for item in await store.histories.turns.read(page.items, "")), page.has_more

    assert await listed(Cursor(3)) == ("edc", True)
    assert await listed(Cursor(3, "c")) == ("ba", False)
    assert await listed(Cursor(3, "b", ascending=True)) == ("cde", False)
    assert await listed(Cursor(0)) == ("", True)
    with pytest.raises(InvalidRequestError, match="after"):
        await listed(Cursor(3, "x"))


async def test_an_answer_beyond_the_bound_on_items_is_kept_and_items_can_be_removed(stores: Stores) -> None:
    store = stores.open(max_messages=2)
    made = await store.conversations.create("", [said("a"), said("b")], {})
    await store.responses.add("", answer(KEY), [said("c")], History(), made.id, keep=False)
    items = (await history(store, made.id)).items
    assert len(items) == 4
    with pytest.raises(InvalidRequestError, match="max_messages"):
        await store.conversations.add("", made.id, [said("e")])
    assert (await store.conversations.describe("", made.id, {"a": "b"})).metadata == {"a": "b"}
    assert (await history(store, made.id)).items == items
    await store.conversations.remove_item("", made.id, items[1].id)
    assert await texts(store, made.id) == ["a", "c", "yes"]
    with pytest.raises(NotFoundError, match="has no item"):
        await store.conversations.remove_item("", made.id, items[1].id)


async def test_a_change_of_a_conversation_touches_its_new_items_alone(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.open()
    made = await store.conversations.create("", [said("a", "a"), said("b", "b"), said("c", "c")], {})
    before, new = rows(store, "SELECT number, id FROM items"), said("d", "d")
    with monkeypatch.context() as patch:
        patch.setattr(turns, "StoredItem", lambda *_: pytest.fail("an item is read"))
        await store.conversations.add("", made.id, [new])
        await store.conversations.remove_item("", made.id, "b")
    left = rows(store, "SELECT number, id FROM items")
    assert [*before[:1], *before[2:]] == left[:-1]
    assert await texts(store, made.id) == ["a", "c", "d"]


async def test_turns_are_shared_and_deleted_with_the_last_that_needs_them(stores: Stores) -> None:
    store = stores.open()
    before, ids = History(), []
    for number in range(20):
        ids.append(await keep(store, f"{number:032}", "x" * 1000, before=before))
        before = await history(store, ids[-1])
        assert len(before.items) == 2 * (number + 1)
    assert store.history_usage.num_bytes < 20 * 3000  # each text once
    assert await texts(store, ids[3]) == ["why?", "x" * 1000] * 4
    for kept_id in ids[:-1]:
        await store.responses.delete("", kept_id)
    assert await history(store, ids[-1]) == before
    await store.responses.delete("", ids[-1])
    assert (store.history_usage.values, store.history_usage.num_bytes) == (0, 0)
    assert rows(store, "SELECT number FROM turns UNION ALL SELECT number FROM items") == []


async def test_what_a_request_continues_may_be_deleted_meanwhile(stores: Stores) -> None:
    store = stores.open()
    first = await keep(store, "1" * 32, "one")
    before = await history(store, first)
    await store.responses.delete("", first)
    second = await keep(store, "2" * 32, "two", before=before)
    assert await texts(store, second) == ["why?", "one", "why?", "two"]
    await store.responses.delete("", second)
    assert store.history_usage.num_bytes == 0


async def test_a_conversation_changes_and_the_response_before_stays(stores: Stores) -> None:
    store = stores.open()
    made = await store.conversations.create("", [said("a", "a"), said("b", "b")], {})
    await store.responses.add("", answer(KEY), [said("c")], await history(store, made.id), made.id, keep=True)
    await store.conversations.remove_item("", made.id, "a")
    assert await texts(store, made.id) == ["b", "c", "yes"]
    assert await texts(store, f"resp_{KEY}") == ["a", "b", "c", "yes"]
    await store.conversations.delete("", made.id)
    assert await texts(store, f"resp_{KEY}") == ["a", "b", "c", "yes"]
    await store.responses.delete("", f"resp_{KEY}")
    assert store.history_usage.num_bytes == 0


async def test_what_is_large_is_read_and_deleted_in_pieces(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_PIECE_BYTES", 2000)
    store, pieces, read = stores.open(), list[int](), turns.read_items

    def count(db: sqlite3.Connection, places: list[Place]) -> list[StoredItem]:
        pieces.append(len(places))
        return read(db, places)

    made = await store.conversations.create("", [said("x" * 500, f"{number}") for number in range(7)], {})
    monkeypatch.setattr(turns, "read_items", count)
    assert await texts(store, made.id) == ["x" * 500] * 7
    assert pieces == [2, 2, 2, 1]
    left = list[int]()
    sweep = store.histories.turns._sweep

    def watch(transaction: Any) -> None:  # noqa: ANN401
        sweep(transaction)
        left.append(transaction.execute("SELECT count(*) FROM items").fetchone()[0])

    monkeypatch.setattr(store.histories.turns, "_sweep", watch)
    await store.conversations.delete("", made.id)
    assert left == [5, 3, 1, 0, 0]


async def test_turns_are_deleted_after_a_deletion_that_failed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = stores.open()
    made, kept_turns = await store.conversations.create("", [said("a")], {}), store.histories.turns
    sweep = kept_turns._sweep

    def fail_at_the_end(transaction: Transaction) -> None:
        sweep(transaction)
        if transaction.execute("SELECT 1 FROM turns").fetchone() is None:
            raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(kept_turns, "_sweep", fail_at_the_end)
        await store.conversations.delete("", made.id)
    assert "what was said is not deleted yet" in caplog.text
    assert len(rows(store, "SELECT * FROM turns")) == 1
    await store.conversations.drop_expired()
    assert rows(store, "SELECT * FROM turns") == []


async def test_references_find_items_of_answers_alone(stores: Stores) -> None:
    store = stores.open()
    await keep(store, KEY, owner="ann")
    reference = {"type": "item_reference", "id": f"msg_{KEY}0000"}
    [found] = await store.responses.resolve("ann", [reference])
    assert found.load()["content"][0]["text"] == "yes"
    for owner, item_id in (("bob", f"msg_{KEY}0000"), ("ann", f"msg_{KEY}0001"), ("ann", "msg_1"), ("ann", KEY)):
        with pytest.raises(NotFoundError, match="has an item"):
            await store.responses.resolve(owner, [{"type": "item_reference", "id": item_id}])


async def test_references_to_one_answer_read_it_once(stores: Stores) -> None:
    store = stores.open(max_body_bytes=10_000)
    await keep(store, "1" * 32, "x" * 6000)
    await keep(store, "2" * 32, "x" * 6000)
    first, second = ({"type": "item_reference", "id": f"msg_{key * 32}0000"} for key in "12")
    items = await store.responses.resolve("", [first] * 1000)
    assert (len(items), len({id(item) for item in items})) == (1000, 1)
    with pytest.raises(InvalidRequestError, match=r"item_reference: .*max_body_bytes"):
        await store.responses.resolve("", [first, second])


async def test_responses_are_bounded_by_number_and_time(stores: Stores) -> None:
    store = stores.open(max_responses=2, max_response_seconds=10)
    ids = []
    for number in range(3):
        ids.append(await keep(store, f"{number:032}"))
        stores.now += 1
    assert await kept(store, *ids) == ids[1:]
    stores.now = 1011.0
    assert await kept(store, *ids) == ids[2:]
    stores.now = 1012.0
    assert await kept(store, *ids) == []
    usage = store.history_usage
    assert (usage.values, usage.num_bytes, usage.evictions) == (0, 0, 1)


async def test_conversations_give_way_by_use(stores: Stores) -> None:
    store = stores.open(max_conversations=2, max_conversation_bytes=4900, max_messages=3)
    conversations = store.conversations
    other = await conversations.create("bob", [said("x" * 2000)], {})
    first, second = [(await conversations.create("ann", [said("a")], {})).id for _ in range(2)]
    stores.now += 1
    await conversations.get("ann", first)
    stores.now += 1
    third = (await conversations.create("ann", [], {})).id
    assert await kept(store, first, second, third, owner="ann") == [first, third]
    stores.now += 1
    await conversations.add("ann", third, [said("x" * 1500)])
    assert await kept(store, first, third, owner="ann") == [first, third]
    stores.now += 1
    await conversations.add("ann", third, [said("x" * 1000)])
    assert await kept(store, first, third, owner="ann") == [third]
    with pytest.raises(InvalidRequestError, match="max_conversation_bytes"):
        await conversations.add("ann", third, [said("x" * 4000)])
    with pytest.raises(InvalidRequestError, match="max_messages"):
        await conversations.create("ann", [said("a")] * 4, {})
    assert await kept(store, third, owner="ann") == [third]
    assert await texts(store, other.id, "bob") == ["x" * 2000]


async def test_what_is_too_large_by_itself_is_dropped_alone(stores: Stores) -> None:
    store = stores.open(max_conversation_bytes=10_000)
    first = await keep(store, "1" * 32)
    made = await store.conversations.create("", [said("a")], {})
    large = await keep(store, "2" * 32, "x" * 20_000)
    assert await kept(store, first, large) == [first]
    await store.responses.add("", answer(KEY, "x" * 20_000), [], History(), made.id, keep=False)
    assert await kept(store, first, made.id) == [first]
    assert store.history_usage.evictions == 2


async def test_who_keeps_most_gives_way(stores: Stores) -> None:
    store = stores.open(max_all_conversation_bytes=25_000)
    anns = await keep(store, "a" * 32, owner="ann")
    bobs = []
    for number in range(10):
        stores.now += 1
        bobs.append(await keep(store, f"{number:032}", "x" * 8000, owner="bob"))
    assert await kept(store, anns, owner="ann") == [anns]
    assert await kept(store, *bobs, owner="bob") == bobs[-2:]
    assert (store.history_usage.values, store.history_usage.evictions) == (3, 8)


async def test_bounds_hold_for_changes_at_once(stores: Stores) -> None:
    store = stores.open(max_responses=2)

    async def work(number: int) -> None:
        kept_id = await keep(store, f"{number:032}")
        with suppress(NotFoundError):
            await store.responses.delete("", kept_id)

    await asyncio.gather(*map(work, range(100)), *(keep(store, f"{number:032}") for number in range(200, 250)))
    assert store.history_usage.values == 2


async def test_random_changes_leave_the_counts_right(stores: Stores) -> None:
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
                    made = await store.conversations.create("", [said("x" * dice.randrange(3000))], {})
                    conversations.append(made.id)
                case 1 if conversations:
                    items = (await history(store, dice.choice(conversations))).items
                    if items:
                        await store.conversations.remove_item("", conversations[-1], dice.choice(items).id)
                case 2 if responses:
                    await store.responses.delete("", dice.choice(responses))
                case 3 if conversations:
                    await store.conversations.delete("", dice.choice(conversations))
                case kind:
                    if kind == 4 and responses:
                        before = await history(store, dice.choice(responses))
                    elif kind == 5 and conversations:
                        conversation = dice.choice(conversations)
                        before = await history(store, conversation)
                    response = answer(f"{number:032}", "x" * dice.randrange(3000))
                    await store.responses.add("", response, [said("b")], before, conversation, keep=True)
                    responses.append(str(response["id"]))
    check_counts(store)
    assert store.history_usage.num_bytes <= 20_000


def check_counts(store: Store) -> None:
    """Check that the bytes, the uses and the items that are counted are those of the rows."""
    [[num_bytes]] = rows(
        store,
        "SELECT (SELECT coalesce(sum(num_bytes), 0) FROM turns) + (SELECT coalesce(sum(num_bytes), 0) FROM responses)"
        " + (SELECT coalesce(sum(num_bytes), 0) FROM conversations)",
    )
    assert store.history_usage.num_bytes == num_bytes
    assert rows(store, "SELECT number FROM items WHERE turn NOT IN (SELECT number FROM turns)") == []
    counts = """SELECT * FROM turns WHERE uses = 0 OR uses != (SELECT count(*) FROM ends WHERE turn = turns.number)
        + (SELECT count(*) FROM turns AS later WHERE later.parent = turns.number)
        OR (num_items, num_bytes) != (SELECT count(*), coalesce(sum(128 + length(id) + length(fields)), 0) FROM items
        WHERE turn = turns.number)"""
    assert rows(store, counts) == []


async def response_json(store: Store, kept_id: str, owner: str = "") -> bytes:
    return await store.responses.json(await store.responses.get(owner, kept_id))


class TestRestarts:
    async def test_everything_outlasts_a_restart(self, lasting: Stores) -> None:
        store = lasting.open()
        made = await store.conversations.create("ann", [said("a")], {"b": "c"})
        before = await history(store, made.id, "ann")
        await store.responses.add("ann", answer(KEY), [said("b")], before, None, keep=True)
        shown = await response_json(store, f"resp_{KEY}", "ann")
        store = lasting.open()
        assert (await store.conversations.get("ann", made.id)).metadata == {"b": "c"}
        assert await response_json(store, f"resp_{KEY}", "ann") == shown
        assert await texts(store, f"resp_{KEY}", "ann") == ["a", "b", "yes"]
        page = await store.responses.input_page("ann", f"resp_{KEY}", ALL)
        [item] = await store.histories.turns.read(page.items, "ann")
        assert item.load()["content"][0]["text"] == "b"

    async def test_a_kill_loses_nothing_that_was_kept(self, lasting: Stores, tmp_path: Path) -> None:
        """The folder is copied after each change, as a kill at that moment leaves it."""
        assert lasting.folder is not None
        store = lasting.open()
        ids: list[str] = []
        for number in range(10):
            ids.append(await keep(store, f"{number:032}"))
            folder = tmp_path / f"copy {number}"
            folder.mkdir()
            for path in lasting.folder.glob(f"{DATABASE}*"):
                shutil.copy(path, folder)
            copies = Stores(folder)
            assert await kept(copies.open(), *ids) == ids
            copies.close()

    async def test_what_is_deleted_is_no_longer_in_the_file(
        self, lasting: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also if the server was killed between the deletion and its pieces."""
        assert lasting.folder is not None
        store = lasting.open()
        await store.conversations.delete("", (await store.conversations.create("", [said("a secret")], {})).id)
        made = await store.conversations.create("", [said("another one")], {})
        monkeypatch.setattr(store.histories.turns, "_has_unused", False)
        monkeypatch.setattr(store.histories.turns, "_is_sweeping", True)
        await store.conversations.delete("", made.id)
        lasting.close()
        data = (lasting.folder / DATABASE).read_bytes()
        assert (b"a secret" in data, b"another one" in data) == (False, True)
        await keep(lasting.open(), KEY)
        lasting.close()
        assert b"another one" not in (lasting.folder / DATABASE).read_bytes()

    async def test_a_damaged_file_loses_nothing_else(self, lasting: Stores, caplog: pytest.LogCaptureFixture) -> None:
        """What can be read of a damaged file is kept, and every history that is kept is whole."""
        assert lasting.folder is not None
        store = lasting.open()
        ids, before = list[str](), History()
        for number in range(100):
            ids.append(await keep(store, f"{number:032}", "x" * 1000, before=before))
            before = await history(store, ids[-1]) if number % 5 else History()
        lasting.close()
        path = lasting.folder / DATABASE
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 20_480] = b"\xff" * 20_480
        path.write_bytes(data)
        with caplog.at_level(logging.WARNING):
            store = lasting.open()
        assert "is damaged" in caplog.text
        assert path.with_name(f"{DATABASE}.damaged").read_bytes() == data
        found = await kept(store, *ids)
        assert 0 < len(found) < 100
        for kept_id in found:
            place = ids.index(kept_id)
            assert await texts(store, kept_id) == ["why?", "x" * 1000] * (1 + (place - 1) % 5 if place else 1)
        await keep(store, KEY)
        check_counts(store)

    @pytest.mark.parametrize("damaged", [b"5", b'{"role": "user', b""])
    def test_a_damaged_item_is_an_error_of_its_own(self, damaged: bytes) -> None:
        with pytest.raises(StorageError, match="the item 'item' was kept and is damaged"):
            StoredItem("item", "message", damaged).load()

    async def test_a_full_disk_is_read_and_gets_room_by_deletions(self, lasting: Stores) -> None:
        store = lasting.open()
        first = await keep(store, "1" * 32, "x" * 300_000)
        second = await keep(store, KEY)
        store._database.write_now(
            lambda transaction: transaction.execute("PRAGMA max_page_count = 130").fetchall(), frees=True
        )
        with pytest.raises(StorageError, match="full"):
            await keep(store, "2" * 32, "x" * 1_000_000)
        assert await kept(store, first, second, f"resp_{'2' * 32}") == [first, second]
        assert store.history_usage.values == 2
        await store.responses.delete("", first)
        assert await kept(store, first, second) == [second]
        size, unused = store._database.num_bytes
        assert (size < 300_000, unused) == (True, 0)


async def test_a_folder_of_the_format_before_is_brought_up_to_date(lasting: Stores, tmp_path: Path) -> None:
    lasting.open()
    lasting.close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        for table in ("turns", "items", "owners", "ends", "conversations", "responses"):
            db.execute(f"DROP TABLE {table}")
        db.execute("PRAGMA user_version = 1")
    store = lasting.open()
    assert await kept(store, await keep(store, KEY)) == [f"resp_{KEY}"]
