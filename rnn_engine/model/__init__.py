"""Model files as numpy sees them: one shape and one set of tensor names, whatever the file's format and convention."""

from rnn_engine.model.lora import LoraChoice
from rnn_engine.model.merged import MergedModel, OpenModel
from rnn_engine.model.model_file import ModelFile

__all__ = ["LoraChoice", "MergedModel", "ModelFile", "OpenModel"]
