"""Models with the weights that a device computes with, as numpy arrays."""

from __future__ import annotations

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
