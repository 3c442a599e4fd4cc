"""Tiers for copies of states: device pool, host memory, disk, shared store. Each counts its bytes and bounds them."""
