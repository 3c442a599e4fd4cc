"""A tiny RWKV-6 with two skills, for tests: its questions, model and training."""
