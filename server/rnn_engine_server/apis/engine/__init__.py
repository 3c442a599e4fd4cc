"""The API of this engine's own: states, cache, scores, tokens, status."""
