"""Sampling: draw tokens from rows of logits. A draw reads only a row's few top candidates if they determine it.

A draw from candidates yields the same token as one from the whole row.
"""
