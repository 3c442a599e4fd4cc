"""Anthropic's API: messages, batches of them, and the count of a conversation's tokens."""
