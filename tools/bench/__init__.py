"""Measures how fast the forward pass runs on a device, with random models of real shapes made on the spot."""
