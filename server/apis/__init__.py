"""The HTTP APIs, one package or module each."""
