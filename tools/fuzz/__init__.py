"""Requests and files that are damaged at random: `tools.fuzz.routes` and `tools.fuzz.files`."""
