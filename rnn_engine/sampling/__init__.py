"""Sampling: draw tokens from rows of logits, of which few candidates are read if they determine the draw."""
