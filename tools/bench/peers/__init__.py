"""Comparisons of this engine with others on the same machine: same shapes, same lengths, in turns."""
