"""Read model files of any supported format as numpy arrays, under one set of tensor names and orientations."""

from rnn_engine.model.lora import LoraChoice
from rnn_engine.model.merged import MergedModel, OpenModel
from rnn_engine.model.model_file import ModelFile

__all__ = ["LoraChoice", "MergedModel", "ModelFile", "OpenModel"]
