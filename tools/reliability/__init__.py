"""Tests of fairness between API keys and of the memory for stored bodies, and the table of all such tests' results."""
