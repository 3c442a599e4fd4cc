"""Replicas that a config file of Ray Serve describes (deploy/serve.yaml), for commands `fleet --application`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt

from rnn_engine.cli.fleet import load_replica
from rnn_engine.cli.session import EngineChoice
from rnn_engine.loading.settings import LoadSettings
from states.cache.config import CacheConfig
from states.shared.config import StoreConfig
from states.shared.url import StoreUrl


class ReplicaArgs(BaseModel):
    """What the file may say of a replica: options of `rnn-engine fleet`, with the same defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Path  # on each machine
    tokenizer: str = "auto"
    device: str = "auto"
    weights: str | None = None
    slots: PositiveInt = 8
    max_queued: PositiveInt = 64
    store: str | None = None


def application(args: dict[str, Any]) -> Any:  # noqa: ANN401 - an application of Ray Serve's
    """Return the application of a model's replicas. How many there are, and what each has, is said beside `args`."""
    from rnn_engine.fleet.deployment import make_application

    given = ReplicaArgs.model_validate(args)
    store = None if given.store is None else StoreConfig(StoreUrl.parse(given.store))
    loading = LoadSettings(given.device, given.tokenizer, weights=given.weights)
    choice = EngineChoice(given.model, loading, given.slots, CacheConfig(store=store), max_queued=given.max_queued)
    return make_application(partial(load_replica, choice), replicas=1, slots=given.slots)
