"""The bodies of OpenAI's responses."""
