"""Collections of documents: what is stored, found and refused, also after a kill, on a full disk and from threads."""

from __future__ import annotations

import logging
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError, StorageError
from rnn_engine.types import F32
from rnn_engine_states.documents import (
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


def vectors(count: int, seed: int = 0) -> F32:
    found = np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)
    unit: F32 = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


def documents(*ids: str, text: str = "a text") -> list[Document]:
    return [Document(each, f"{text} {each}", {"of": each}, 3) for each in ids]


def fill(collection: StoredCollection, *ids: str, seed: int = 0, replace: bool = False) -> F32:
    found = vectors(len(ids), seed)
    collection.put(documents(*ids), found, replace=replace)
    return found


def make(store: DocumentStore, name: str = "notes", owner: str = "") -> StoredCollection:
    return store.create(owner, name, "fingerprint", "toy")


def ids_of(collection: StoredCollection) -> list[str]:
    return [document.id for document in collection.page(None, 1000)[0]]


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DocumentStore]:
    opened = DocumentStore(None if request.param == "memory" else tmp_path)
    yield opened
    opened.close()


def test_documents_are_stored_listed_and_removed(store: DocumentStore) -> None:
    collection = make(store)
    fill(collection, "a", "b/1", "ü")
    assert collection.get("b/1") == Document("b/1", "a text b/1", {"of": "b/1"}, 3)
    assert [document.id for document in collection.page("a", 1)[0]] == ["b/1"]
    assert (collection.page("a", 1)[1], collection.page("a", 2)[1]) == (True, False)
    assert collection.remove(["ü", "other", "ü"]) == ["ü"]
    assert ids_of(collection) == ["a", "b/1"]
    for missing in (lambda: collection.get("ü"), lambda: collection.page("ü", 1)):
        with pytest.raises(NotFoundError, match="collection 'notes' has no document 'ü'"):
            missing()


def test_the_nearest_vectors_are_found(store: DocumentStore) -> None:
    collection = make(store)
    ids = [str(number) for number in range(50)]
    matrix = fill(collection, *ids)
    query = vectors(1, seed=9)[0]
    expected = sorted(range(50), key=lambda number: -float(matrix[number] @ query))
    found = store.nearest(collection, query, 7)
    assert [document.id for document, _ in found] == [str(number) for number in expected[:7]]
    assert [cosine for _, cosine in found] == pytest.approx([float(matrix[n] @ query) for n in expected[:7]], abs=1e-6)
    assert len(store.nearest(collection, query, 1000)) == 50


def test_a_search_sees_every_change(store: DocumentStore) -> None:
    collection = make(store)
    query = vectors(1)[0]
    assert store.nearest(collection, query, 5) == []
    collection.put(documents("first", "second"), np.stack([query, query]), replace=False)
    assert [document.id for document, _ in store.nearest(collection, query, 5)] == ["first", "second"]
    collection.put(documents("first", text="new"), -query[None], replace=True)
    found = store.nearest(collection, query, 5)
    assert [(document.text, round(cosine, 5)) for document, cosine in found] == [
        ("a text second", 1.0),
        ("new first", -1.0),
    ]
    collection.remove(["second"])
    assert [document.id for document, _ in store.nearest(collection, query, 5)] == ["first"]


def test_known_ids_are_refused_unless_they_are_replaced(store: DocumentStore) -> None:
    collection = make(store)
    fill(collection, "a", "b")
    with pytest.raises(InvalidRequestError, match="has a document 'a' and 1 more already; delete it first"):
        fill(collection, "new", "a", "b", seed=1)
    assert ids_of(collection) == ["a", "b"]
    fill(collection, "new", "a", seed=1, replace=True)
    assert ids_of(collection) == ["b", "new", "a"]


def test_owners_do_not_see_each_other(store: DocumentStore) -> None:
    make(store, owner="ann")
    assert make(store, owner="bob").facts.owner == "bob"
    make(store, "more", owner="ann")
    assert [each.facts.name for each in store.of_owner("ann")] == ["more", "notes"]
    with pytest.raises(NotFoundError, match="collection 'more' does not exist; there are: notes"):
        store.get("bob", "more")
    with pytest.raises(InvalidRequestError, match="a name that is free"):
        make(store, owner="ann")
    store.delete("ann", "notes")
    assert store.get("bob", "notes").num_documents == 0


def test_a_deleted_collection_says_so_to_those_who_use_it(store: DocumentStore) -> None:
    collection = make(store)
    fill(collection, "a")
    store.nearest(collection, vectors(1)[0], 1)
    store.delete("", "notes")
    uses: list[Callable[[], object]] = [
        lambda: store.nearest(collection, vectors(1)[0], 1),
        lambda: fill(collection, "b"),
        lambda: collection.get("a"),
    ]
    for use in uses:
        with pytest.raises(NotFoundError, match="collection 'notes' was deleted meanwhile"):
            use()
    assert make(store).num_documents == 0


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
        document.check("documents.0")


def test_limits() -> None:
    store = DocumentStore(limits=CollectionLimits(2, 3, 100_000))
    collection, other = make(store), make(store, "other")
    with pytest.raises(InvalidRequestError, match=r"name: 'third' .* at most 2 collections \(max_collections\)"):
        make(store, "third")
    make(store, owner="ann")
    store.check_room(collection, documents("a", "b", "c"), WIDTH)
    fill(collection, "a")
    with pytest.raises(InvalidRequestError, match=r"at most 3 documents .* \(max_collection_documents\), and .* has 1"):
        store.check_room(collection, documents("b", "c", "d"), WIDTH)
    large = [Document("large", "x" * 100_000)]
    with pytest.raises(InvalidRequestError, match=r"at most 100000 bytes in all collections \(max_collection_bytes\)"):
        store.check_room(other, large, WIDTH)
    store.close()


# Files.


def test_collections_outlive_a_restart(tmp_path: Path) -> None:
    store = DocumentStore(tmp_path)
    fill(make(store), "a", "b")
    make(store, "gone")
    store.delete("", "gone")
    found = store.nearest(store.get("", "notes"), vectors(2)[1], 2)
    with pytest.raises(StateError, match="another process uses it"):
        DocumentStore(tmp_path)
    store.close()
    again = DocumentStore(tmp_path)
    assert [each.facts.name for each in again.of_owner("")] == ["notes"]
    assert again.nearest(again.get("", "notes"), vectors(2)[1], 2) == found
    assert (again.get("", "notes").facts.model, again.get("", "notes").facts.model_name) == ("fingerprint", "toy")
    again.close()


def test_a_damaged_file_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = DocumentStore(tmp_path)
    fill(make(store), "a")
    fill(make(store, "other"), "a")
    store.close()
    damaged, other = sorted(tmp_path.glob("*.sqlite"))
    damaged.write_bytes(b"no database" * 100)
    (tmp_path / "c.sqlite").touch()
    with caplog.at_level(logging.WARNING):
        again = DocumentStore(tmp_path)
    assert len(again.of_owner("")) == 1
    assert f"the collection in {damaged.name} is skipped: file is not a database" in caplog.text
    assert "the collection in c.sqlite is skipped: its format is 0; expected 1" in caplog.text
    assert damaged.exists()
    [left] = again.of_owner("")
    data = bytearray(other.read_bytes())
    data[5000:] = bytes(len(data) - 5000)
    other.write_bytes(data)
    with pytest.raises(StorageError, match="can't be read or written"):
        left.get("a")
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
    fill(make(store), "a")
    store.close()
    [path] = tmp_path.glob("*.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE documents SET {damage}")
    store = DocumentStore(tmp_path)

    def use(store: DocumentStore) -> None:
        notes = store.get("", "notes")
        notes.page(None, 1)
        store.nearest(notes, vectors(1)[0], 1)

    with pytest.raises(StorageError, match="the file of collection 'notes' can't be read or written"):
        use(store)
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


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    store = DocumentStore(tmp_path)
    collection = make(store)
    fill(collection, "a", "b")
    large = [Document("c", "c"), Document("d", "d" * 200_000)]
    with most_file_bytes(60_000), pytest.raises(StorageError, match=r"'notes' can't be read or written: .*disk"):
        collection.put(large, vectors(2), replace=False)
    assert ids_of(collection) == ["a", "b"]
    with most_file_bytes(1000), pytest.raises(StorageError, match="'more' can't be written: File too large"):
        make(store, "more")
    assert [each.facts.name for each in store.of_owner("")] == ["notes"]
    collection.put(large, vectors(2), replace=False)
    with most_file_bytes(0):
        store.nearest(collection, vectors(1)[0], 1)
        store.delete("", "notes")
    assert list(tmp_path.glob("*.sqlite*")) == []
    store.close()


ADDER = """
import sys
from pathlib import Path
import numpy as np
from rnn_engine_states.documents import Document, DocumentStore

store = DocumentStore(Path(sys.argv[1]))
notes = store.create("", "notes", "", "") if sys.argv[2] == "0" else store.get("", "notes")
for number in range(int(sys.argv[2]), 10**6):
    documents = [Document(f"{number}.{part}", "text " * 2000) for part in range(8)]
    notes.put(documents, np.ones((8, 8), np.float32), replace=False)
    notes.remove([f"{number}.7"])
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
        collection = store.get("", "notes")
        assert {f"{number}.{part}" for number in range(done + 1) for part in range(7)} <= set(ids_of(collection))
        unreported = collection.page(f"{done}.6", 1000)[0]
        assert len(unreported) in (0, 7, 8)
        collection.remove([document.id for document in unreported])
        assert len(store.nearest(collection, np.ones(8, np.float32), 10**6)) == 7 * (done + 1)
        store.close()


@pytest.mark.parametrize("seed", range(2))
def test_threads_change_and_search_at_the_same_time(tmp_path: Path, seed: int) -> None:
    """Each thread changes documents of its own, so a dict of its own says what there must be."""
    store = DocumentStore(tmp_path)
    collection = make(store)

    def run(thread: int) -> dict[str, str]:
        chance = random.Random(10 * seed + thread)
        kept: dict[str, str] = {}
        for step in range(20):
            ids = [f"{thread}.{number}" for number in chance.sample(range(6), 2)]
            match chance.choice(["put", "replace", "remove", "search"]):
                case "put":
                    with suppress(InvalidRequestError):
                        collection.put(documents(*ids, text=str(step)), vectors(2, step), replace=False)
                        kept |= {each: f"{step} {each}" for each in ids}
                case "replace":
                    collection.put(documents(*ids, text=str(step)), vectors(2, step), replace=True)
                    kept |= {each: f"{step} {each}" for each in ids}
                case "remove":
                    assert set(collection.remove(ids)) == set(ids) & set(kept)
                    kept = {each: text for each, text in kept.items() if each not in ids}
                case "search":
                    found = {document.id for document, _ in store.nearest(collection, vectors(1, step)[0], 1000)}
                    assert {each for each in found if each.startswith(f"{thread}.")} == set(kept)
        return kept

    with ThreadPoolExecutor(4) as threads:
        expected = {each: text for kept in threads.map(run, range(4)) for each, text in kept.items()}
    store.close()
    again = DocumentStore(tmp_path)
    assert {document.id: document.text for document in again.get("", "notes").page(None, 1000)[0]} == expected
    again.close()
