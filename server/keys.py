"""The keys under which the application carries what its handlers need."""

from __future__ import annotations

from aiohttp import web

from rnn_engine.interface import EngineLike
from server.lifecycle import Lifecycle
from server.settings import ServerSettings

ENGINE: web.AppKey[EngineLike] = web.AppKey("engine", EngineLike)
SETTINGS = web.AppKey("settings", ServerSettings)
LIFECYCLE = web.AppKey("lifecycle", Lifecycle)
