"""Whether every text that a grammar of a JSON schema leads to is valid."""
