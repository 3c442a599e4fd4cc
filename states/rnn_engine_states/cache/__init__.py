"""The cache of recurrent states: checkpoints by token prefix, in tiers of limited size. Start with `cache.py`."""
