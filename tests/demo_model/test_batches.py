"""Packing: every token of a document is in its place, and only answers are learnt."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tools.demo_model.batches import END, IGNORED, Document, document, pack
from tools.demo_model.corpus.dialogue import Dialogue, Turn


def by_character(text: str) -> list[int]:
    return [ord(character) for character in text]


documents = st.lists(
    st.integers(1, 12).flatmap(
        lambda size: st.builds(
            Document,
            st.lists(st.integers(1, 9), min_size=size, max_size=size),
            st.lists(st.booleans(), min_size=size, max_size=size),
        )
    ),
    max_size=30,
)


@given(documents)
def test_packed_rows_hold_the_documents_in_order(docs: list[Document]) -> None:
    filler = Document([7] * 10, [False] * 10)
    batches = list(pack([*docs, *[filler] * 6], rows=3, length=10))
    found: list[list[int]] = []
    for batch in batches:
        for tokens, starts in zip(batch.tokens, batch.starts, strict=True):
            found += [part.tolist() for part in np.split(tokens, np.flatnonzero(starts)) if part.size]
    expected = [doc.tokens for doc in docs if len(doc.tokens) <= 10]
    stripped = [[token for token in tokens if token != END] for tokens in found]
    assert stripped[: len(expected)] == expected[: len(stripped)]


def test_targets_are_the_next_tokens_of_answers_and_the_end() -> None:
    doc = document(Dialogue((Turn("ab", "c"),)), by_character)
    batch = next(pack([doc, Document([1] * 40, [False] * 40)], rows=1, length=40))
    length = len(doc.tokens)
    learnt = [chr(target) for target in batch.targets[0, : length - 1] if target != IGNORED]
    assert "".join(learnt) == " c\n\n"
    assert batch.targets[0, length - 1] == END
    assert (batch.targets[0, length:] == IGNORED).all()
