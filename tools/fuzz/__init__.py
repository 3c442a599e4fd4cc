"""Fuzzing: damaged requests (`routes`), a server held to its document (`document`), damaged files, and the engine."""
