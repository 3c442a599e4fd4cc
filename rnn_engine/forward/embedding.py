"""The embedding and its layer norm, on the host: a step needs few of its V rows, and the device need not hold them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import F32, Model

_EPSILON = 1e-5


class Embedding:
    """Looks tokens up in a model's embedding, which stays where it is: in the mapped file."""

    def __init__(self, model: Model) -> None:
        self._table = model.tensor("emb.weight")  # [V, D]
        self._weight = model.tensor("blocks.0.ln0.weight").astype(np.float32)  # [D]
        self._bias = model.tensor("blocks.0.ln0.bias").astype(np.float32)  # [D]

    def look_up(self, tokens: NDArray[np.intp]) -> F32:
        """ln0(emb[tokens]): [T] -> [T, D]."""
        rows = self._table[tokens].astype(np.float32)
        centred = rows - rows.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        normed: NDArray[np.floating] = centred / np.sqrt(variance + np.float32(_EPSILON)) * self._weight + self._bias
        return normed.astype(np.float32, copy=False)
