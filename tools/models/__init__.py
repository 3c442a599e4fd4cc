"""Measures what weight formats cost in accuracy, and writes docs/models.md."""
