"""A server in a process of its own, and ways to speak to it that ordinary clients do not have."""
