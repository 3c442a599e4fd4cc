"""Comparisons of this engine's speed with other engines' on one machine, with equal shapes, in alternating runs."""
