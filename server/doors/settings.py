"""What an operator may set of who comes in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Who may come in besides this machine and the server's own pages."""

    open: bool = False  # without an API key: other machines, too
    allowed_hosts: tuple[str, ...] = ()  # names by which clients may call the server
    cors_origins: tuple[str, ...] = ()  # of other web pages, as `https://chat.example`
