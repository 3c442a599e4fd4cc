"""Measure fairness between keys and the memory of stored bodies, and write the table of all tools' results."""
