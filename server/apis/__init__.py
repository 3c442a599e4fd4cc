"""The HTTP APIs, each in a package or module of its own."""
