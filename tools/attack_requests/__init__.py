"""Requests that once took gigabytes of a server's memory, or made all other clients wait."""
