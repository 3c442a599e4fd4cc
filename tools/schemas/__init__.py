"""Tests of the grammars made from JSON schemas: each text that a grammar allows must be valid under its schema."""
