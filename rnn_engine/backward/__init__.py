"""Gradients of the loss with respect to an initial state or low-rank pairs, on a device and in numpy, to train them."""

from rnn_engine.backward.trainer import Optimizer, Trainer, TrainingDocument, TrainingState

__all__ = ["Optimizer", "Trainer", "TrainingDocument", "TrainingState"]
