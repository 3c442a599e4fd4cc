"""A server in its own process, and clients for it that can also misbehave."""
