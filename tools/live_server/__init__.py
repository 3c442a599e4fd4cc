"""A server in a process of its own, for tests and measurements, and clients for it that can also misbehave."""
