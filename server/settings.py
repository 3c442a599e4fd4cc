"""What an operator may set of a server: address, doors, limits, log."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rnn_engine.chat_template.answer import ReasoningFormat
from rnn_engine.checks import check_finite
from server.connections.settings import ConnectionSettings
from server.doors.settings import DoorSettings
from server.limits import Limits
from server.telemetry.logs import LogSettings


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Address, doors, limits and log of the server."""

    host: str = "127.0.0.1"
    port: int = 65530  # 0 = any free one
    unix_socket: Path | None = None  # instead of host and port
    unix_socket_mode: int = 0o660  # of its file: who may connect
    drain_seconds: float = 10.0  # how long running requests may go on after a signal to stop
    model_folder: Path | None = None  # from which admins may load; None = nothing
    admin_folders: tuple[Path, ...] = ()  # in which admins may read and write files, too
    unzip_folders: tuple[Path, ...] = ()  # in which they may unpack archives
    embed_model: Path | None = None  # the folder of a model for /api/oai/embeds
    web: bool = True  # serve the web page at /; else that of the routes
    strict: bool = True  # refuse fields of bodies that nothing knows; else they are left out, and the answer says so
    any_model: bool = False  # the default model answers for names that no model has, too
    idle_unload_seconds: float | None = None  # after which an unused model is freed; None = never
    exit_on_failure: bool = False  # end where the engine has failed for good, so that the server is started anew
    doors: DoorSettings = field(default_factory=DoorSettings)  # who may come in
    reasoning_format: ReasoningFormat = "auto"  # whether thoughts come apart from content, unless a request says it
    limits: Limits = field(default_factory=Limits)
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    logs: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("drain_seconds", self.drain_seconds)
        check_finite("idle_unload_seconds", self.idle_unload_seconds)
