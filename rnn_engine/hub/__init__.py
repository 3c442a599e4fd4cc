"""Models of the Hugging Face Hub: which one a name means, how its files get here, and which are here already."""

from rnn_engine.hub.local import KNOWN, LocalModel, Wanted, list_local, locate_model

__all__ = ["KNOWN", "LocalModel", "Wanted", "list_local", "locate_model"]
