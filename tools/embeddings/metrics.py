"""Measure how well vectors tell labels apart, by cosine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]  # [S, any]
Labels = NDArray[np.int64]  # [S]

_REDRAWN = 4000


@dataclass(frozen=True, slots=True)
class Separation:
    """Each sentence asks all others, which are ranked by cosine. Higher is better in all four."""

    nearest: float  # how often the first has the same label
    reciprocal_rank: float  # mean of 1 / the rank of the first that has it
    precision: float  # mean average precision over all that have it
    silhouette: float  # mean of (b - a) / max(a, b): distances to the own label and to the nearest other


def reciprocal_ranks(vectors: Vectors, labels: Labels) -> NDArray[np.float64]:
    """Return [S] 1 / the rank of the first sentence with the same label, for each."""
    ranks: NDArray[np.float64] = 1 / (_ranked(vectors, labels).argmax(axis=1) + 1)
    return ranks


def separation(vectors: Vectors, labels: Labels) -> Separation:
    """Measure `vectors` against `labels`. Every label has two sentences or more."""
    same = _ranked(vectors, labels)
    ranks = np.arange(1, len(labels))
    precision = np.cumsum(same, axis=1) / ranks
    return Separation(
        nearest=float(same[:, 0].mean()),
        reciprocal_rank=float(reciprocal_ranks(vectors, labels).mean()),
        precision=float(((precision * same).sum(axis=1) / same.sum(axis=1)).mean()),
        silhouette=float(_silhouettes(1 - _cosines(vectors), labels).mean()),
    )


def gain(vectors: Vectors, others: Vectors, labels: Labels, seed: int = 0) -> tuple[float, float]:
    """Return how much greater the mean reciprocal rank is than `others`': the range of 95 % of redrawn means."""
    differences = reciprocal_ranks(vectors, labels) - reciprocal_ranks(others, labels)
    redrawn = np.random.default_rng(seed).integers(0, len(labels), (_REDRAWN, len(labels)))
    low, high = np.percentile(differences[redrawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _ranked(vectors: Vectors, labels: Labels) -> NDArray[np.bool_]:
    """Return [S, S - 1] whether the other sentences have the label of each, nearest first."""
    cosines = _cosines(vectors)  # [S, S]
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :-1]
    same: NDArray[np.bool_] = labels[order] == labels[:, None]
    return same


def _cosines(vectors: Vectors) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    units = wide / np.maximum(lengths, 1e-30)
    cosines: NDArray[np.float64] = units @ units.T
    return cosines


def _silhouettes(distances: NDArray[np.float64], labels: Labels) -> NDArray[np.float64]:
    """Return [S] the silhouette of each vector."""
    members = labels == np.unique(labels)[:, None]  # [labels, S]
    own = labels == labels[:, None]  # [S, S]
    np.fill_diagonal(own, False)
    inside = (distances * own).sum(axis=1) / own.sum(axis=1)
    to_label = distances @ members.T / members.sum(axis=1)  # [S, labels]
    to_label[members.T] = np.inf
    outside = to_label.min(axis=1)
    silhouettes: NDArray[np.float64] = (outside - inside) / np.maximum(np.maximum(inside, outside), 1e-12)
    return silhouettes
