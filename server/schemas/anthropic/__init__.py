"""The bodies of Anthropic's API."""
