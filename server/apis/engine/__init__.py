"""This engine's own API."""
