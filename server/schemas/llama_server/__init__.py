"""The bodies of llama-server's own routes."""
