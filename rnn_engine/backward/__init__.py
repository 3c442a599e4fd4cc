"""Gradients of the loss with respect to an initial state, on a device and in numpy, and the training of states."""

from rnn_engine.backward.trainer import Document, Optimizer, Trainer, TrainingState

__all__ = ["Document", "Optimizer", "Trainer", "TrainingState"]
