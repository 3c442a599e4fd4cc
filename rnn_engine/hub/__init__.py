"""Models of the Hugging Face Hub: resolve a model's name, download its files, and list the models on this computer."""

from rnn_engine.hub.local import KNOWN, LocalModel, Wanted, list_local, locate_model, model_name

__all__ = ["KNOWN", "LocalModel", "Wanted", "list_local", "locate_model", "model_name"]
