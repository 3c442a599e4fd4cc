"""The models of a server by name, and which of them answers a request."""
