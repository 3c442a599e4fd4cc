"""Measure fairness between keys and what kept bodies take, and write the table of all tools' results."""
