"""Checkpoints of states by token prefix, kept in bounded tiers. Begin to read at `cache.py`."""
