"""The bodies of Ollama's API."""
