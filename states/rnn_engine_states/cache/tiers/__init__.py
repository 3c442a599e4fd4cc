"""The tiers of the state cache, in which copies of states are stored: device, host memory, disk and shared store.

Each counts the bytes of its copies and bounds them.
"""
