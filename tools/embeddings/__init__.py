"""Measures which part of a state tells topics apart best: `python -m tools.embeddings`."""
