"""Measurements of the host's time for a token, with a runner that answers at once in place of a model."""
