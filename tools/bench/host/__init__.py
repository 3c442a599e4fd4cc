"""Measures what a token costs on the host, with a runner that answers at once in place of a model."""
