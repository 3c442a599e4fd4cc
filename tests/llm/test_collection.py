"""Collections in Python: the tokens that a query runs with kept states, without them, and after a restart."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnn_engine import LLM, AsyncCollection, AsyncLLM, Collection, Document, Search
from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError
from rnn_engine.operations.relevance import document_tokens
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.models import random_model, save_safetensors, tiny_shape

QUERY = "How many legs does a spider have?"
ANIMALS = [
    f"A {animal} has {legs} legs, and that is all there is to say about the {animal}, whatever else it may have."
    for animal, legs in (("cat", "four"), ("spider", "eight"), ("snake", "no"), ("bird", "two"), ("bee", "six"))
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = random_model(tiny_shape(layers=2, width=32, head_size=16, vocab=65536), seed=3)
    return save_safetensors(made, tmp_path_factory.mktemp("model") / "tiny.safetensors")


@pytest.fixture(scope="module")
def tiny(model: Path) -> Iterator[LLM]:
    with opened(model, CacheConfig()) as llm:
        yield llm


def opened(model: Path, cache: CacheConfig | None = None) -> LLM:
    return LLM(model, device="cpu", num_slots=4, cache=cache)


def scores(found: Search) -> dict[str, float]:
    return {hit.document.text: hit.score for hit in found.hits}


def test_a_query_runs_its_own_tokens_alone(model: Path, tiny: LLM) -> None:
    with opened(model) as anew:
        notes, others = tiny.collection("animals"), anew.collection()
        notes.add(ANIMALS)
        others.add(ANIMALS)
        found, again = notes.query(QUERY), others.query(QUERY)
        assert (len(found.hits), found.method) == (5, "yes_no")
        assert scores(found) == pytest.approx(scores(again), abs=1e-3)
        begins = sum(len(document_tokens(tiny.engine, text)) for text in ANIMALS)
        prompts = sum(cost.prompt_tokens for cost in found.costs)
        assert found.tokens_run == prompts - begins
        assert again.tokens_run == prompts


def test_states_outlive_a_restart(model: Path, tmp_path: Path) -> None:
    cache = CacheConfig(disk=DiskConfig(tmp_path / "states"))
    with opened(model, cache) as llm:
        llm.collection("notes", tmp_path).add(ANIMALS)
        first = llm.collection("notes", tmp_path).query(QUERY)
    with opened(model, cache) as llm:
        notes = llm.collection("notes", tmp_path)
        again = notes.query("How many legs does a bee have?")
        assert again.tokens_run == pytest.approx(first.tokens_run, rel=0.1)
        assert sum(cost.cached_tokens for cost in again.costs) == sum(cost.cached_tokens for cost in first.costs)
        assert scores(notes.query(QUERY)) == pytest.approx(scores(first), abs=1e-5)
        with opened(model) as other, pytest.raises(StateError, match="another process uses it"):
            other.collection("notes", tmp_path)


def test_documents_are_kept_under_ids(tiny: LLM) -> None:
    notes = tiny.collection("notes")
    document = Document("bee", "A bee has six legs.", {"page": 3})
    assert notes.add([document, {"id": "cat", "text": "A cat has four legs."}]) == ["bee", "cat"]
    [made] = notes.add(["A snake has no legs."])
    assert [each.id for each in notes] == ["bee", "cat", made]
    assert (notes.name, len(notes), notes.get("bee").metadata) == ("notes", 3, {"page": 3})
    assert notes.get("bee").num_tokens == len(tiny.tokenize("A bee has six legs."))
    notes.add([{"id": "cat", "text": "A cat sleeps."}], replace=True)
    assert tiny.collection("notes").get("cat").text == "A cat sleeps."
    [nearest] = notes.query("A cat sleeps.", top_n=1, rerank=False).hits
    assert (nearest.document.id, nearest.relevance) == ("cat", None)
    assert nearest.score == nearest.similarity == pytest.approx(1.0, abs=1e-5)
    assert notes.remove(["cat", "dog"]) == ["cat"]
    notes.delete()
    with pytest.raises(NotFoundError, match="collection 'notes' was deleted meanwhile"):
        notes.query("legs")
    assert len(tiny.collection("notes")) == 0


def test_misuse_is_refused_in_words(tiny: LLM) -> None:
    notes = tiny.collection("misused")
    for documents, message in (
        ("A text.", "documents: 'A text.' is not allowed; expected a list"),
        ([3], r"documents\.0: 3 is not allowed; expected a text, or an object"),
        (["a", " "], r"documents\.1\.text: ' ' is not allowed"),
        ([{"id": "b", "text": "x"}] * 2, "documents: 'b' is not allowed; expected ids that are all different"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            notes.add(documents)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="query: '' is not allowed"):
        notes.query("")
    with pytest.raises(InvalidRequestError, match="top_n: 0 is not allowed"):
        notes.query("a", top_n=0)
    assert len(notes) == 0


async def test_the_twin_finds_the_same(model: Path, tiny: LLM) -> None:
    notes = tiny.collection("twins")
    notes.add(ANIMALS[:2])
    expected = scores(notes.query(QUERY))
    async with await AsyncLLM.load(model, device="cpu", cache=None) as twin:
        others = await twin.collection()
        await others.add(ANIMALS[:2])
        assert scores(await others.query(QUERY)) == pytest.approx(expected, abs=1e-3)
    with pytest.raises(NotFoundError, match="the store of collections was closed meanwhile"):
        others.get("cat")


def test_the_twins_have_the_same_methods_and_arguments() -> None:
    for name, method in inspect.getmembers(Collection, inspect.isfunction):
        if name != "__init__":
            twin = inspect.signature(getattr(AsyncCollection, name))
            assert inspect.signature(method).parameters == twin.parameters, name
