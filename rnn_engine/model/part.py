"""A part of a model: some of its layers that follow one another, as a model of fewer layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from rnn_engine.quantised.rows import Matrix
from rnn_engine.types import Model, ModelShape


@dataclass(frozen=True)
class ModelPart:
    """Some layers of a model, counted from 0, with the embedding before them or the head after them where it has these.

    Tensors outside the layers that are not the embedding's go with the head.
    """

    model: Model
    layers: range  # of the model
    has_embedding: bool = True
    has_head: bool = True

    @cached_property
    def shape(self) -> ModelShape:
        return replace(self.model.shape, num_layers=len(self.layers))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, map(self._own_name, self.model.names)))

    def name_in_model(self, name: str) -> str:
        """Return the name in the whole model of the tensor that is called `name` in this part."""
        layer, rest = self._split(name)
        return name if layer is None else f"{self.shape.tensor_names.layers}{layer + self.layers.start}{rest}"

    def has(self, name: str) -> bool:
        in_model = self.name_in_model(name)
        return self.model.has(in_model) and self._own_name(in_model) == name

    def tensor(self, name: str) -> NDArray[Any]:
        return self.model.tensor(self.name_in_model(name))

    def block_type(self, name: str) -> str | None:
        return self.model.block_type(self.name_in_model(name))

    def matrix(self, name: str, *, transposed: bool = False) -> Matrix:
        return self.model.matrix(self.name_in_model(name), transposed=transposed)

    def _own_name(self, in_model: str) -> str | None:
        """Return what this part calls the model's tensor `in_model`; None if it is of another part."""
        layer, rest = self._split(in_model)
        names = self.model.shape.tensor_names
        if layer is None or (names.embedding_norm is not None and in_model.startswith(f"{names.embedding_norm}.")):
            of_embedding = layer is not None or in_model == names.embedding
            return in_model if (self.has_embedding if of_embedding else self.has_head) else None
        return f"{names.layers}{layer - self.layers.start}{rest}" if layer in self.layers else None

    def _split(self, name: str) -> tuple[int | None, str]:
        """Return the layer in a tensor's name, None outside the layers, and what follows it in the name."""
        prefix = self.model.shape.tensor_names.layers
        number, dot, rest = name.removeprefix(prefix).partition(".")
        return (int(number), dot + rest) if name.startswith(prefix) and number.isdecimal() else (None, name)
