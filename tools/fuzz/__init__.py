"""Fuzzing: damaged requests in `tools.fuzz.routes`, damaged files in `tools.fuzz.files`, and other random tests."""
