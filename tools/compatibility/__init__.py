"""The tables of docs/compatibility.md: how this server treats each field of other systems' APIs.

A field behaves as in the other system, behaves differently, or is rejected.
"""
