"""The state cache: it stores checkpoints of states by token prefix in bounded tiers. Start reading with `cache.py`."""
