"""The choice of a machine's device for a replica."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import wgpu

from rnn_engine.errors import DeviceError
from rnn_engine.fleet.settings import ReplicaPlace, device_at


@dataclass
class Adapter:
    """The part of a WebGPU adapter that listing reads."""

    name: str
    kind: str = "DiscreteGPU"
    backend: str = "Vulkan"

    @property
    def info(self) -> dict[str, Any]:
        return {"device": self.name, "adapter_type": self.kind, "backend_type": self.backend, "description": "a driver"}


CPU = Adapter("llvmpipe", "CPU")
PART = Adapter("Graphics", "IntegratedGPU")
MACHINE = (CPU, Adapter("Ada"), PART, Adapter("Ada"), Adapter("Navi"), Adapter("Ada", backend="D3D12"))


@pytest.fixture
def adapters(monkeypatch: pytest.MonkeyPatch) -> list[Adapter]:
    """WebGPU's adapters: 0 llvmpipe, 1 Ada, 2 Graphics, 3 Ada, 4 Navi, 5 Ada again through Direct3D 12."""
    found = list(MACHINE)
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: found)
    return found


@pytest.mark.parametrize(
    ("choice", "devices"), [("auto", "1341"), ("ada", "1313"), ("navi", "4444"), ("graphics", "2222"), ("3", "3333")]
)
def test_replicas_of_a_machine_take_its_devices_in_turn(adapters: list[Adapter], choice: str, devices: str) -> None:
    assert "".join(device_at(ReplicaPlace(7, local), choice) for local in range(4)) == devices


@pytest.mark.parametrize("choice", ["1,3", "0:20,cpu:4"])
def test_a_model_on_several_devices_is_on_them_in_every_replica(choice: str) -> None:
    assert {device_at(ReplicaPlace(7, local), choice) for local in range(4)} == {choice}


def test_a_replica_has_the_gpu_that_ray_gave_it(adapters: list[Adapter]) -> None:
    assert [device_at(ReplicaPlace(0, 0, (gpu,)), "auto") for gpu in ("0", "1", "2")] == ["1", "3", "4"]
    assert device_at(ReplicaPlace(5, 5, ("1",)), "ada") == "3"
    assert device_at(ReplicaPlace(0, 1, ("GPU-5a2f",)), "auto") == "3"
    assert device_at(ReplicaPlace(0, 0, ("1",)), "cpu") == "cpu"


def test_a_gpu_that_webgpu_does_not_reach(adapters: list[Adapter]) -> None:
    with pytest.raises(DeviceError, match="the GPU 3, which Ray gave the replica; expected one of 1 = Ada, 3"):
        device_at(ReplicaPlace(0, 0, ("3",)), "auto")
    adapters[1:] = []
    with pytest.raises(DeviceError, match="the GPU 0, which Ray gave the replica; expected one of 0 = llvmpipe"):
        device_at(ReplicaPlace(0, 0, ("0",)), "auto")


def test_without_gpus_all_replicas_take_the_software_driver(adapters: list[Adapter]) -> None:
    adapters[1:] = []
    assert [device_at(ReplicaPlace(0, local), "auto") for local in range(2)] == ["0", "0"]
    adapters.clear()
    with pytest.raises(DeviceError, match="WebGPU finds no GPU"):
        device_at(ReplicaPlace(0), "auto")
