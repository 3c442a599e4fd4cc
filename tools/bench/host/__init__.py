"""Measurements of the host's time per token. In place of a model, a runner returns prepared logits at once."""
