"""Held-out openings: what a newcomer may type at the demo model, and whether its answers are sensible."""
