"""The tiers of the state cache: device, host memory, disk and shared store. Each bounds the bytes of its copies."""
