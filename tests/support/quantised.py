"""Models with the weights that a device computes with, as numpy arrays."""

from __future__ import annotations

import re

import numpy as np

from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.model import ModelFile
from tests.support.models import TensorModel


def quantised(model: ModelFile, choice: WeightChoice) -> TensorModel:
    """Return the model with the weights as a device holds them."""
    format_of = choice.of(model.shape)
    tensors = {name: model.tensor(name) for name in model.names}
    for name, matrix in tensors.items():
        weights = format_of(name) if matrix.ndim == 2 else None
        if weights is not None:
            tensors[name] = weights.unpack(weights.pack(matrix), *matrix.shape)
    return TensorModel(model.shape, tensors)


def rounded(model: TensorModel, choice: WeightChoice) -> TensorModel:
    """Return the model with the weights as a device holds them, which has the matrices of adapters transposed."""
    format_of = choice.of(model.shape)
    tensors = dict(model.tensors)
    for name, values in model.tensors.items():
        is_adapter = _ADAPTER.fullmatch(name) is not None
        weights = format_of(name) if is_adapter or (name.endswith(".weight") and values.ndim == 2) else None
        if weights is not None:
            matrices = values.reshape(-1, *values.shape[-2:])
            as_held = [matrix.T if is_adapter else matrix for matrix in matrices]
            stored = [weights.unpack(weights.pack(matrix), *matrix.shape) for matrix in as_held]
            tensors[name] = np.stack([each.T if is_adapter else each for each in stored]).reshape(values.shape)
    return TensorModel(model.shape, tensors)


_ADAPTER = re.compile(r".*\.att\.([wavg][12]|time_(maa|decay)_w[12])")
