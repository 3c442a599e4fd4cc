"""Model files as numpy sees them: one shape and one set of tensor names, whatever the file's format and convention."""

from rnn_engine.model.model_file import ModelFile, open_model

__all__ = ["ModelFile", "open_model"]
