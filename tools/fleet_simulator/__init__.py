"""Simulates a fleet: the real scheduler, cache and router over runners, a network and a store that are modelled."""
