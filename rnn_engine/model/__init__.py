"""Read model files of any supported format as numpy arrays, with the tensor names and shapes of BlinkDL's files."""

from rnn_engine.model.lora import LoraChoice
from rnn_engine.model.model_file import ModelFile, ModelPart

__all__ = ["LoraChoice", "ModelFile", "ModelPart"]
