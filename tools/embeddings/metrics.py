"""How well vectors tell labels apart, by cosine. Knows arrays alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]  # [S, any]
Labels = NDArray[np.int64]  # [S]


@dataclass(frozen=True, slots=True)
class Separation:
    """Each sentence asks all others, which are ranked by cosine. Higher is better in all four."""

    nearest: float  # how often the first has the same label
    reciprocal_rank: float  # mean of 1 / the rank of the first that has it
    precision: float  # mean average precision over all that have it
    silhouette: float  # mean of (b - a) / max(a, b): distances to the own label and to the nearest other


def separation(vectors: Vectors, labels: Labels) -> Separation:
    """Measure `vectors` against `labels`. Every label has two sentences or more."""
    cosines = _cosines(vectors)  # [S, S]
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :-1]  # [S, S - 1], nearest first
    same = labels[order] == labels[:, None]
    ranks = np.arange(1, len(labels))
    precision = np.cumsum(same, axis=1) / ranks
    return Separation(
        nearest=float(same[:, 0].mean()),
        reciprocal_rank=float((1 / (same.argmax(axis=1) + 1)).mean()),
        precision=float(((precision * same).sum(axis=1) / same.sum(axis=1)).mean()),
        silhouette=float(_silhouettes(1 - _cosines(vectors), labels).mean()),
    )


def _cosines(vectors: Vectors) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    units = wide / np.maximum(lengths, 1e-30)
    cosines: NDArray[np.float64] = units @ units.T
    return cosines


def _silhouettes(distances: NDArray[np.float64], labels: Labels) -> NDArray[np.float64]:
    """-> [S]"""
    members = labels == np.unique(labels)[:, None]  # [labels, S]
    own = labels == labels[:, None]  # [S, S]
    np.fill_diagonal(own, False)
    inside = (distances * own).sum(axis=1) / own.sum(axis=1)
    to_label = distances @ members.T / members.sum(axis=1)  # [S, labels]
    to_label[members.T] = np.inf
    outside = to_label.min(axis=1)
    silhouettes: NDArray[np.float64] = (outside - inside) / np.maximum(np.maximum(inside, outside), 1e-12)
    return silhouettes
