"""Requests that once took gigabytes of a server's memory, or kept everybody else waiting."""
