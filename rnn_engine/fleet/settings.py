"""How many replicas there are, where, and what each has."""

from __future__ import annotations

from dataclasses import dataclass, field

from rnn_engine.checks import check_finite


@dataclass(frozen=True, slots=True)
class Resources:
    """What Ray sets aside for one replica."""

    cpus: float = 1.0
    gpus: float = 0.0  # 1 at most

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("cpus", self.cpus)
        check_finite("gpus", self.gpus)


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the number of replicas follows that of the requests."""

    most: int
    up_seconds: float = 10.0  # that there are more requests than slots
    down_seconds: float = 300.0  # that fewer replicas would do

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("up_seconds", self.up_seconds)
        check_finite("down_seconds", self.down_seconds)


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How many replicas there are, and where."""

    replicas: int = 2
    scaling: Scaling | None = None  # None: always as many as `replicas`
    address: str | None = None  # of a Ray cluster; None starts one on this machine
    application: str | None = None  # whose replicas are there already, which Serve keeps; None starts some
    resources: Resources = field(default_factory=Resources)
    device: str = "auto"  # of each replica
    drain_seconds: float = 30.0  # in which a replica that leaves ends its requests

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("drain_seconds", self.drain_seconds)

    @property
    def most_replicas(self) -> int:
        return self.replicas if self.scaling is None else self.scaling.most
