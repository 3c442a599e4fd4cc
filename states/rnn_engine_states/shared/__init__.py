"""Checkpoints and named states that several servers share, in a Valkey or Redis server."""
