"""Where copies of states are kept: a pool on the device, host memory, disk. Each is bounded and counts exactly."""
