"""Models of the Hugging Face Hub: find the model that a name means, fetch its files, and list local models."""

from rnn_engine.hub.local import KNOWN, LocalModel, Wanted, list_local, locate_model, searches_cache

__all__ = ["KNOWN", "LocalModel", "Wanted", "list_local", "locate_model", "searches_cache"]
