"""Gradients of the loss with respect to an initial state, on a device and in numpy, and the training of states."""

from rnn_engine.backward.trainer import Optimizer, Trainer, TrainingDocument, TrainingState

__all__ = ["Optimizer", "Trainer", "TrainingDocument", "TrainingState"]
