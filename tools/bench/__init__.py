"""Benchmarks: the forward pass on a device, the host's cost of a token, waiting times, cached states, choices."""
