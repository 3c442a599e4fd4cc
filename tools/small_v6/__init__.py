"""A tiny RWKV-6 that has two skills, for tests: what it is asked, and its training."""
