"""Models of the Hugging Face Hub: which one a name means, how its files get here, and which are here already."""

from rnn_engine.hub.download import Hub
from rnn_engine.hub.local import LocalModel, find_local, list_local
from rnn_engine.hub.wanted import KNOWN, Wanted, could_be_wanted

__all__ = ["KNOWN", "Hub", "LocalModel", "Wanted", "could_be_wanted", "find_local", "list_local"]
