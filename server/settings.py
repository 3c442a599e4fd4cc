"""What can be set on the server. Knows nothing of the engine's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the server listens, whom it admits and how it ends."""

    host: str = "127.0.0.1"
    port: int = 65530  # 0 = any free one
    api_key: str | None = None  # None = everyone is admitted
    drain_seconds: float = 10.0  # how long running work may go on once the server is told to stop
    max_body_bytes: int = 64 * 2**20
