"""Anthropic's API: messages, and the count of a conversation's tokens."""
