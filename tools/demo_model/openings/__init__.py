"""Held-out openings: messages that a newcomer may send to the demo model, and a check that its answers are sensible."""
