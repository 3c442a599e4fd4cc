"""Run llama-server's own tests against this server."""
