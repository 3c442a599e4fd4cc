"""States of sequences, kept so that no token is run twice: a cache over tiers, single flight, files, named ones.

    cache.py       StateCache: look up, restore, insert; the place to begin to read
    policy.py      where on a prompt checkpoints are made
    inflight.py    prompts that arrive together run once
    initial.py     what a sequence may start from; `files/` has the forms in which users have it
    registry.py    StateRegistry: such states under names, with leases and a bound in bytes
    snapshot.py    a picture of the cache

Knows arrays and tokens. Knows no GPU (the device tier is reached through the protocols of `device.py`), no HTTP and
no model file.
"""
