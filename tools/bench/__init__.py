"""Benchmarks: the forward pass on a device, the host's time per token, clients' latencies, and the cache of states."""
