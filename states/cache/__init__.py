"""Checkpoints of states by token prefix, kept in bounded tiers. Start reading with `cache.py`."""
