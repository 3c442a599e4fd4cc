"""The figures by which embeddings are judged, on vectors whose cosines are plain to see."""

from __future__ import annotations

import numpy as np
import pytest

from tools.embeddings.metrics import gain, separation


def test_topics_that_are_far_apart() -> None:
    vectors = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 5.0]])
    found = separation(vectors, np.array([0, 0, 1, 1]))
    assert (found.nearest, found.reciprocal_rank, found.precision, found.silhouette) == (1.0, 1.0, 1.0, 1.0)


def test_topics_that_lie_across() -> None:
    """In order of angle: a b a b, 20 degrees apart, so that every first neighbour is one of the other topic."""
    angles = np.radians([0, 20, 41, 61])
    found = separation(np.stack([np.cos(angles), np.sin(angles)], axis=1), np.array([0, 1, 0, 1]))
    assert found.nearest == 0.0
    # Ranks of the one with the same label: for the outer sentences 2, for the inner ones 3 (after both neighbours).
    assert found.reciprocal_rank == pytest.approx((1 / 2 + 1 / 3 + 1 / 3 + 1 / 2) / 4)
    assert found.precision == pytest.approx(found.reciprocal_rank)

    def apart(degrees: float) -> float:
        return 1 - float(np.cos(np.radians(degrees)))

    inside = apart(41)
    outer, inner = (apart(20) + apart(61)) / 2, (apart(20) + apart(21)) / 2
    expected = ((outer - inside) / max(outer, inside) + (inner - inside) / inside) / 2
    assert found.silhouette == pytest.approx(expected)


def test_equal_vectors_tell_nothing() -> None:
    assert separation(np.ones((4, 3)), np.array([0, 0, 1, 1])).silhouette == 0.0


def test_gain_is_sure_where_every_sentence_gains_alike() -> None:
    labels = np.array([0, 0, 1, 1])
    apart = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 5.0]])
    swapped = apart[[0, 2, 1, 3]]  # the first neighbour is of the other topic
    low, high = gain(apart, swapped, labels)
    assert 0 < low <= high <= 1
    assert gain(apart, apart, labels) == (0.0, 0.0)
    assert gain(swapped, apart, labels) == (-high, -low)
