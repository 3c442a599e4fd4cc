"""Collections of documents: what is stored, found and refused, also after a kill, on a full disk and from threads."""

from __future__ import annotations

import logging
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.database import Transaction
from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError, StorageError
from rnn_engine.types import F32
from rnn_engine_states import documents as module
from rnn_engine_states import vectors as search
from rnn_engine_states.documents import (
    FILE,
    MAX_ID,
    MAX_METADATA_BYTES,
    MAX_TEXT_BYTES,
    CollectionLimits,
    Document,
    DocumentStore,
    StoredCollection,
)
from tests.support.processes import ROOT

WIDTH = 8
FILES = Path("/proc/self/fd")


def vectors(count: int, seed: int = 0) -> F32:
    found = np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)
    unit: F32 = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


def documents(*ids: str, text: str = "a text") -> list[Document]:
    return [Document(each, f"{text} {each}", {"of": each}, 3) for each in ids]


@dataclass(frozen=True)
class Notes:
    """A collection of a store, whose methods block."""

    store: DocumentStore
    stored: StoredCollection

    @property
    def now(self) -> StoredCollection:
        return self.store.database.read_now(self.stored.now)

    def put(self, new: list[Document], found: F32, *, replace: bool = False) -> None:
        prepared = [each.prepare("documents.0", WIDTH) for each in new]
        put = partial(self.store.put, collection=self.stored, documents=prepared, vectors=found, replace=replace)
        self.store.database.write_now(put)

    def fill(self, *ids: str, seed: int = 0, replace: bool = False) -> F32:
        found = vectors(len(ids), seed)
        self.put(documents(*ids), found, replace=replace)
        return found

    def remove(self, *ids: str) -> list[str]:
        removed, rest = self.store.database.write_now(partial(self.stored.remove, ids=ids), frees=True)
        return [*removed, *(self.remove(*rest) if rest else ())]

    def get(self, document_id: str) -> Document:
        return self.store.database.read_now(lambda db: self.stored.get(db, document_id))

    def page(self, after: str | None = None, limit: int = 1000) -> tuple[list[Document], bool]:
        rows, has_more = self.store.database.read_now(lambda db: self.stored.page(db, after, limit))
        found = self.store.database.read_now(partial(self.stored.read, rows=[row.row for row in rows]))
        return list(found.values()), has_more

    @property
    def ids(self) -> list[str]:
        found, has_more = self.page()
        while has_more:
            more, has_more = self.page(found[-1].id)
            found += more
        return [document.id for document in found]

    def nearest(self, vector: F32, count: int) -> list[tuple[Document, float]]:
        nearest = self.store.nearest(self.stored, vector, count)
        found = self.store.database.read_now(partial(self.stored.read, rows=[row.row for row, _ in nearest]))
        return [(found[row.row], cosine) for row, cosine in nearest]

    def found(self, vector: F32, count: int) -> list[str]:
        return [document.id for document, _ in self.nearest(vector, count)]


def make(store: DocumentStore, name: str = "notes", owner: str = "") -> Notes:
    create = partial(store.create, owner=owner, name=name, model="fingerprint", model_name="toy")
    return Notes(store, store.database.write_now(create))


def find(store: DocumentStore, name: str = "notes", owner: str = "") -> Notes:
    return Notes(store, store.database.read_now(lambda db: store.find(db, owner, name)))


def delete(store: DocumentStore, name: str = "notes", owner: str = "") -> None:
    store.database.write_now(lambda transaction: store.delete(transaction, owner, name), frees=True)


def names(store: DocumentStore, owner: str | None = "") -> list[str]:
    return [each.name for each in store.database.read_now(lambda db: store.page(db, owner, None, 1000))[0]]


def stored_documents(store: DocumentStore) -> int:
    """Return how many documents are in the table, those of deleted collections included."""
    count: int = store.database.read_now(lambda db: db.execute("SELECT count(*) FROM documents").fetchone()[0])
    return count


def finish_deleting(store: DocumentStore, left: int = 0) -> None:
    while stored_documents(store) > left:
        store.database.write_now(lambda _: None)  # each deletion of a part begins the next one


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DocumentStore]:
    opened = DocumentStore(None if request.param == "memory" else tmp_path)
    yield opened
    opened.close()


def test_documents_are_stored_listed_and_removed(store: DocumentStore) -> None:
    notes = make(store)
    notes.fill("a", "b/1", "ü")
    assert notes.get("b/1") == Document("b/1", "a text b/1", {"of": "b/1"}, 3)
    assert [document.id for document in notes.page("a", 1)[0]] == ["b/1"]
    assert (notes.page("a", 1)[1], notes.page("a", 2)[1]) == (True, False)
    assert notes.remove("ü", "other", "ü") == ["ü"]
    assert notes.ids == ["a", "b/1"]
    for missing in (lambda: notes.get("ü"), lambda: notes.page("ü", 1)):
        with pytest.raises(NotFoundError, match="collection 'notes' has no document 'ü'"):
            missing()


def test_a_page_of_large_documents_is_short(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = make(store)
    notes.put(documents("a", "b", "c", text="x" * 1000), vectors(3))
    monkeypatch.setattr(module, "_PAGE_BYTES", 3000)
    assert [[document.id for document in notes.page(after)[0]] for after in (None, "b")] == [["a", "b"], ["c"]]
    assert (notes.page()[1], notes.page("b")[1]) == (True, False)
    monkeypatch.setattr(module, "_PAGE_BYTES", 10)
    assert [document.id for document in notes.page()[0]] == ["a"]
    assert notes.ids == ["a", "b", "c"]


def test_many_documents_are_removed_in_parts(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = make(store)
    notes.fill(*"abcdefgh")
    empty = make(store, "empty").now
    remove = partial(notes.stored.remove, ids="abcxcda")
    monkeypatch.setattr(module, "_PART", 5)
    assert store.database.write_now(remove) == (["a", "b", "c"], "da")
    monkeypatch.setattr(module, "_PART_BYTES", 10)
    assert store.database.write_now(partial(notes.stored.remove, ids="xdef")) == (["d"], "ef")
    assert notes.remove(*"efgh") == ["e", "f", "g", "h"]
    assert (notes.ids, notes.now.num_documents, notes.now.num_bytes) == ([], 0, empty.num_bytes)


def test_the_nearest_vectors_are_found(store: DocumentStore) -> None:
    notes = make(store)
    ids = [str(number) for number in range(50)]
    matrix = notes.fill(*ids)
    query = vectors(1, seed=9)[0]
    expected = sorted(range(50), key=lambda number: -float(matrix[number] @ query))
    found = notes.nearest(query, 7)
    assert [document.id for document, _ in found] == [str(number) for number in expected[:7]]
    assert [cosine for _, cosine in found] == pytest.approx([float(matrix[n] @ query) for n in expected[:7]], abs=1e-6)
    assert len(notes.nearest(query, 1000)) == 50
    notes.put(documents("x", "y", "z"), np.stack([query] * 3))
    assert notes.found(query, 2) == ["x", "y"]


def test_a_search_sees_every_change(store: DocumentStore) -> None:
    notes = make(store)
    query = vectors(1)[0]
    assert notes.nearest(query, 5) == []
    notes.put(documents("first", "second"), np.stack([query, query]))
    assert notes.found(query, 5) == ["first", "second"]
    notes.put(documents("first", text="new"), -query[None], replace=True)
    assert [(document.text, round(cosine, 5)) for document, cosine in notes.nearest(query, 5)] == [
        ("a text second", 1.0),
        ("new first", -1.0),
    ]
    notes.remove("second")
    assert notes.found(query, 5) == ["first"]


@pytest.mark.parametrize("seed", range(3))
def test_searches_between_random_changes_find_what_a_search_of_all_finds(
    store: DocumentStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_BLOCK", 4)
    chance, notes, kept = random.Random(seed), make(store), dict[str, F32]()
    for step in range(40):
        ids = [str(number) for number in chance.sample(range(20), chance.randint(1, 9))]
        if chance.random() < 0.5:
            matrix = notes.fill(*ids, seed=step, replace=True)
            kept = {each: vector for each, vector in kept.items() if each not in ids}
            kept |= dict(zip(ids, matrix, strict=True))
        else:
            assert notes.remove(*ids) == [each for each in ids if each in kept]
            kept = {each: vector for each, vector in kept.items() if each not in ids}
        if chance.random() < 0.7:
            query = vectors(1, seed=1000 + step)[0]
            assert notes.found(query, 6) == sorted(kept, key=lambda each: -float(kept[each] @ query))[:6]
        assert notes.now.num_documents == len(kept)


def test_only_new_vectors_are_read(store: DocumentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, read, query = make(store), list[int](), vectors(1, seed=9)[0]
    ids = [str(number) for number in range(40)]
    notes.fill(*ids)
    vectors_after = search._vectors_after

    def watch(collection: int, last: int, connection: sqlite3.Connection) -> list[tuple[int, bytes]]:
        found = vectors_after(collection, last, connection)
        read.append(len(found))
        return found

    monkeypatch.setattr(search, "_vectors_after", watch)
    for change, num_read in (
        (lambda: None, 40),
        (lambda: None, 0),
        (lambda: notes.fill("new", "newer"), 2),
        (lambda: notes.remove("3", "17", "new"), 0),
        (lambda: notes.fill("5", seed=1, replace=True), 1),
    ):
        read.clear()
        change()
        notes.nearest(query, 3)
        assert sum(read) == num_read
    assert sorted(notes.found(query, 100)) == sorted({*ids, "newer"} - {"3", "17"})


def test_vectors_in_memory_are_bounded(store: DocumentStore) -> None:
    matrices = search.Matrices(store.database, capacity=3 * 4 * 4 * WIDTH)
    made = [make(store, str(number)) for number in range(5)]
    for notes in made:
        notes.fill("a", "b", "c", "d")
        assert len(matrices.nearest(notes.stored.number, 1, vectors(1)[0], 9)) == 4
    assert matrices.usage == (3, 3 * 4 * 4 * WIDTH, 2)
    matrices.forget(made[4].stored.number)
    assert matrices.usage == (2, 2 * 4 * 4 * WIDTH, 2)


def test_a_search_does_not_wait_for_one_of_another_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DocumentStore(tmp_path)
    slow, quick = make(store, "slow"), make(store, "quick")
    slow.fill("a")
    quick.fill("b")
    begun, go_on, vectors_after = threading.Event(), threading.Event(), search._vectors_after

    def read(collection: int, last: int, connection: sqlite3.Connection) -> list[tuple[int, bytes]]:
        if collection == slow.stored.number:
            begun.set()
            assert go_on.wait(60)
        return vectors_after(collection, last, connection)

    monkeypatch.setattr(search, "_vectors_after", read)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(slow.found, vectors(1)[0], 1)
        assert begun.wait(60)
        assert quick.found(vectors(1)[0], 1) == ["b"]
        quick.fill("c", seed=1)
        assert not waiting.done()
        go_on.set()
        assert waiting.result() == ["a"]
    store.close()


def test_known_ids_are_refused_unless_they_are_replaced(store: DocumentStore) -> None:
    notes = make(store)
    notes.fill("a", "b")
    with pytest.raises(InvalidRequestError, match="has a document 'a' and 1 more already; delete it first"):
        notes.fill("new", "a", "b", seed=1)
    assert notes.ids == ["a", "b"]
    notes.fill("new", "a", seed=1, replace=True)
    assert notes.ids == ["b", "new", "a"]


def test_owners_do_not_see_each_other(store: DocumentStore) -> None:
    make(store, owner="ann")
    assert make(store, owner="bob").stored.owner == "bob"
    make(store, "more", owner="ann")
    assert (names(store, "ann"), names(store, "bob")) == (["more", "notes"], ["notes"])
    assert names(store, None) == ["more", "notes", "notes"]
    with pytest.raises(NotFoundError, match="collection 'more' does not exist; there are: notes"):
        find(store, "more", "bob")
    with pytest.raises(InvalidRequestError, match="a name that is free"):
        make(store, owner="ann")
    delete(store, owner="ann")
    assert find(store, owner="bob").stored.num_documents == 0


def test_collections_are_listed_page_by_page(store: DocumentStore) -> None:
    made = [make(store, name, owner) for owner, name in (("ann", "x"), ("ann", "y"), ("bob", "a"), ("bob", "z"))]
    for owner, expected in ((None, made), ("bob", made[2:])):
        after, listed, has_more = None, list[StoredCollection](), True
        while has_more:
            page, has_more = store.database.read_now(partial(store.page, owner=owner, after=after, limit=1))
            listed += page
            after = page[-1].id
        assert listed == [notes.stored for notes in expected]
    for after in (made[0].stored.id, "other"):
        with pytest.raises(InvalidRequestError, match=r"after: .* expected the id of an item in this list"):
            store.database.read_now(partial(store.page, owner="bob", after=after, limit=1))


def test_a_deleted_collection_says_so_to_those_who_use_it(store: DocumentStore) -> None:
    notes = make(store)
    notes.fill("a")
    notes.nearest(vectors(1)[0], 1)
    delete(store)
    uses: list[Callable[[], object]] = [
        lambda: notes.nearest(vectors(1)[0], 1),
        lambda: notes.fill("b"),
        lambda: notes.remove("a"),
        lambda: notes.get("a"),
        notes.page,
    ]
    for use in uses:
        with pytest.raises(NotFoundError, match="collection 'notes' was deleted meanwhile"):
            use()
    assert make(store).ids == []
    finish_deleting(store)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (Document("", "a"), "documents.0.id: '' is not allowed; expected 1 to 256 printable characters"),
        (Document("a\n", "a"), "documents.0.id"),
        (Document("a" * (MAX_ID + 1), "a"), "documents.0.id"),
        (Document("a", " \n"), "documents.0.text: .* expected a text that is not empty"),
        (Document("a", "a" * (MAX_TEXT_BYTES + 1)), "documents.0.text: '1048577 bytes' .* at most 1048576 bytes"),
        (Document("a", "\ud800"), "text: .* without unpaired surrogates"),
        (Document("a", "a", {"of": object()}), "documents.0.metadata: .* expected a JSON object"),
        (Document("a", "a", {"of": float("nan")}), "documents.0.metadata: .* expected a JSON object"),
        (Document("a", "a", {"of": "a" * MAX_METADATA_BYTES}), "documents.0.metadata: .* at most 16384 bytes of JSON"),
    ],
)
def test_bad_documents_are_refused(document: Document, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        document.prepare("documents.0", WIDTH)


def test_limits() -> None:
    store = DocumentStore(limits=CollectionLimits(2, 3, 100_000, 150_000))
    notes, other = make(store), make(store, "other")
    with pytest.raises(InvalidRequestError, match=r"name: 'third' .* at most 2 collections \(max_collections\)"):
        make(store, "third")
    make(store, owner="ann")
    notes.fill("a")
    with pytest.raises(InvalidRequestError, match=r"at most 3 documents .* \(max_collection_documents\), and .* has 1"):
        notes.fill("b", "c", "d")
    notes.fill("a", "b", "c", replace=True)
    large = [Document("large", "x" * 99_000)]
    with pytest.raises(InvalidRequestError, match=r"at most 100000 bytes in all .* a key \(max_collection_bytes\)"):
        other.put([*large, *documents("d", text="x" * 1000)], vectors(2))
    other.put(large, vectors(1))
    other.put(large, vectors(1), replace=True)
    with pytest.raises(StorageError, match=r"all clients take 150000 bytes, the most \(max_all_collection_bytes\)"):
        find(store, owner="ann").put(large, vectors(1))
    assert (notes.ids, other.ids, find(store, owner="ann").ids) == (["a", "b", "c"], ["large"], [])
    delete(store, "other")
    find(store, owner="ann").put(large, vectors(1))
    store.close()


# Files.


def test_collections_outlive_a_restart(tmp_path: Path) -> None:
    store = DocumentStore(tmp_path)
    make(store).fill("a", "b")
    make(store, "gone")
    delete(store, "gone")
    found = find(store).nearest(vectors(2)[1], 2)
    with pytest.raises(StateError, match="another process uses it"):
        DocumentStore(tmp_path)
    store.close()
    again = DocumentStore(tmp_path)
    assert names(again) == ["notes"]
    assert find(again).nearest(vectors(2)[1], 2) == found
    assert (find(again).stored.model, find(again).stored.model_name) == ("fingerprint", "toy")
    again.close()
    with pytest.raises(NotFoundError, match="the store of collections was closed meanwhile"):
        find(again)


def test_many_collections_need_no_more_open_files(tmp_path: Path) -> None:
    store = DocumentStore(tmp_path)
    make(store).fill("a")
    find(store).nearest(vectors(1)[0], 1)
    files, threads = len(list(FILES.iterdir())), threading.active_count()

    def fill(transaction: Transaction) -> None:
        for number in range(1006):
            store.create(transaction, "", str(number), "fingerprint", "toy")

    store.database.write_now(fill)
    for number in range(0, 1006, 50):
        assert find(store, str(number)).nearest(vectors(1)[0], 1) == []
    assert len(list(FILES.iterdir())) <= files + 6  # two readers more, each with the file, its log and their index
    assert threading.active_count() <= threads + 2
    store.close()


def test_what_can_be_read_of_a_damaged_file_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = DocumentStore(tmp_path)
    notes = make(store)
    notes.put([Document(str(number), "x" * 3000) for number in range(200)], vectors(200))
    make(store, "other").fill("a")
    store.close()
    path = tmp_path / FILE
    data = bytearray(path.read_bytes())
    assert len(data) > 600_000
    data[409_600:413_696] = bytes(4096)
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        again = DocumentStore(tmp_path)
    assert "what can be read is kept" in caplog.text
    assert (tmp_path / f"{FILE}.damaged").read_bytes() == data
    left = find(again)
    assert 150 < left.stored.num_documents < 200
    assert left.stored.num_documents == len(left.ids) == len(left.nearest(vectors(1)[0], 1000))
    assert find(again, "other").ids == ["a"]
    again.close()


@pytest.mark.parametrize(
    "damage",
    [
        "metadata = 5",
        "metadata = '{'",
        "text = x'00'",
        "vector = 'x'",
        f"vector = x'{WIDTH * '0000c07f'}'",
        "vector = zeroblob(36)",
    ],
)
def test_damaged_values_of_a_document_are_an_error_of_their_own(tmp_path: Path, damage: str) -> None:
    store = DocumentStore(tmp_path)
    make(store).fill("a")
    store.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute(f"UPDATE documents SET {damage}")
    store = DocumentStore(tmp_path)
    with pytest.raises(StorageError, match=r"collection 'notes' can't be read: (a document|a vector|Expecting)"):
        find(store).nearest(vectors(1)[0], 1)
    store.close()


@contextmanager
def most_file_bytes(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing_and_deletion_gives_space_back(tmp_path: Path) -> None:
    store = DocumentStore(tmp_path)
    notes, small = make(store), make(store, "small")
    small.fill("a", "b")
    notes.put([Document(str(number), "x" * 100_000) for number in range(100)], vectors(100))
    small.remove("b")  # which also moves the log to the file
    path, large = tmp_path / FILE, [Document("d", "d" * 1_000_000)]
    before = path.stat().st_size
    with most_file_bytes(900_000):
        with pytest.raises(StorageError, match=r"the store of collections can't be read or written: .*(disk|full)"):
            small.put(large, vectors(1))
        assert (small.ids, small.found(vectors(1)[0], 1)) == (["a"], ["a"])
    with most_file_bytes(before):
        delete(store)
        finish_deleting(store, left=1)
        store.database.write_now(lambda _: None, frees=True)
        assert sum(store.database.num_bytes) < before / 10
    small.put(large, vectors(1))
    assert (names(store), small.ids) == (["small"], ["a", "d"])
    store.close()


def test_a_deletion_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DocumentStore(tmp_path)
    make(store).fill("a", "b")
    make(store, "other").fill("c")
    with monkeypatch.context() as patch:
        patch.setattr(store.database, "write_soon", lambda *_arguments, **_options: None)
        delete(store)
    assert (names(store), stored_documents(store)) == (["other"], 3)
    store.close()
    again = DocumentStore(tmp_path)
    finish_deleting(again, left=1)
    assert find(again, "other").ids == ["c"]
    again.close()


ADDER = """
import sys
from functools import partial
from pathlib import Path
import numpy as np
from rnn_engine_states.documents import Document, DocumentStore

store = DocumentStore(Path(sys.argv[1]))
change = store.database.write_now
if sys.argv[2] == "0":
    notes = change(partial(store.create, owner="", name="notes", model="", model_name=""))
else:
    notes = store.database.read_now(partial(store.find, owner="", name="notes"))
for number in range(int(sys.argv[2]), 10**6):
    new = [Document(f"{number}.{part}", "text " * 2000).prepare("", 8) for part in range(8)]
    vectors = np.ones((8, 8), np.float32)
    change(partial(store.put, collection=notes, documents=new, vectors=vectors, replace=False))
    change(partial(notes.remove, ids=[f"{number}.7"]), frees=True)
    print(number, flush=True)
"""


def test_a_kill_leaves_whole_changes(tmp_path: Path) -> None:
    """A process is killed while it adds; all that it has reported is there, and no part of a change."""
    done = -1
    for reports in (3, 17, 40):
        adder = subprocess.Popen(
            [sys.executable, "-c", ADDER, tmp_path, str(done + 1)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert adder.stdout is not None
        with adder:
            for _ in range(reports):
                done = int(adder.stdout.readline())
            adder.send_signal(signal.SIGKILL)
            done = max([done, *map(int, adder.stdout.read().split())])
        store = DocumentStore(tmp_path)
        notes = find(store)
        assert {f"{number}.{part}" for number in range(done + 1) for part in range(7)} <= set(notes.ids)
        assert notes.stored.num_documents == len(notes.ids)
        unreported = notes.page(f"{done}.6")[0]
        assert len(unreported) in (0, 7, 8)
        notes.remove(*(document.id for document in unreported))
        assert len(notes.nearest(np.ones(8, np.float32), 10**6)) == 7 * (done + 1)
        store.close()


@pytest.mark.parametrize("seed", range(2))
def test_threads_change_and_search_at_the_same_time(store: DocumentStore, seed: int) -> None:
    """Each thread changes documents of its own, so a dict of its own says what there must be."""
    notes = make(store)

    def run(thread: int) -> dict[str, str]:
        chance = random.Random(10 * seed + thread)
        kept: dict[str, str] = {}
        for step in range(20):
            ids = [f"{thread}.{number}" for number in chance.sample(range(6), 2)]
            match chance.choice(["put", "replace", "remove", "search"]):
                case "put":
                    with suppress(InvalidRequestError):
                        notes.put(documents(*ids, text=str(step)), vectors(2, step))
                        kept |= {each: f"{step} {each}" for each in ids}
                case "replace":
                    notes.put(documents(*ids, text=str(step)), vectors(2, step), replace=True)
                    kept |= {each: f"{step} {each}" for each in ids}
                case "remove":
                    assert set(notes.remove(*ids)) == set(ids) & set(kept)
                    kept = {each: text for each, text in kept.items() if each not in ids}
                case "search":
                    nearest = store.nearest(notes.stored, vectors(1, step)[0], 1000)
                    rows = [row.row for row, _ in nearest]
                    read = store.database.read_now(partial(notes.stored.read, rows=rows)).values()
                    assert {each.id for each in read if each.id.startswith(f"{thread}.")} == set(kept)
        return kept

    with ThreadPoolExecutor(4) as threads:
        expected = {each: text for kept in threads.map(run, range(4)) for each, text in kept.items()}
    assert {document.id: document.text for document in notes.page()[0]} == expected
