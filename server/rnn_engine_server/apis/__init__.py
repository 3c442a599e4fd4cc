"""The HTTP APIs that the server implements, each in a package or module of its own."""
