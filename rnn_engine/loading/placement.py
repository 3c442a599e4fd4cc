"""Which layers of a model lie on which device, if it is loaded onto several: the texts that say so, and the parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

from rnn_engine.errors import InvalidRequestError
from rnn_engine.model import ModelPart
from rnn_engine.types import Model

_DEVICES: Final = re.compile(r"(?:\d+|cpu)(?::\d+)?(?:,(?:\d+|cpu)(?::\d+)?)+")


def is_placement(device: str) -> bool:
    """Return True for a text that names several devices: indices or "cpu", each perhaps with a number of layers.

    "0,1" and "0:20,cpu:4" are such texts.
    """
    return _DEVICES.fullmatch(device) is not None


def devices_of(device: str) -> list[str]:
    """Return the devices in the text of a placement; the text itself if it names one device."""
    return [each.partition(":")[0] for each in device.split(",")] if is_placement(device) else [device]


def with_layers(devices: Sequence[str], counts: Sequence[int]) -> str:
    """Return the text of a placement of as many layers as `counts` on each of the devices."""
    return ",".join(f"{each}:{count}" for each, count in zip(devices, counts, strict=True))


def split_device(device: str, split: Sequence[int] | None, num_layers: int) -> str:
    """Return the text of the placement `device` with the numbers of layers in `split`, if it is given.

    Raises InvalidRequestError unless there is a number for each of several devices, and all add up to `num_layers`.
    """
    devices = devices_of(device)
    if split is None:
        return device
    if len(devices) < 2 or len(split) != len(devices) or min(split) < 1 or sum(split) != num_layers:
        allowed = (
            f"a number of layers for each of several devices, that add up to {num_layers}, such as"
            f" {num_layers - num_layers // 2},{num_layers // 2} with --device 0,1"
        )
        raise InvalidRequestError("split", ",".join(map(str, split)), allowed)
    return with_layers(devices, split)


def cut(model: Model, device: str) -> Iterator[tuple[ModelPart, str]]:
    """Yield the parts of a model that a placement makes, each with its device.

    Where the text has no numbers, each device gets as many layers as the others. Raises InvalidRequestError if the
    numbers don't add up to the model's layers.
    """
    num_layers, devices = model.shape.num_layers, devices_of(device)
    ends = [num_layers * place // len(devices) for place in range(len(devices) + 1)]
    even = [end - start for start, end in pairwise(ends)]
    counts = [int(each.partition(":")[2] or 0) for each in device.split(",")] if ":" in device else even
    if min(counts) < 1 or sum(counts) != num_layers:
        allowed = f"at most {num_layers} devices with 1 layer or more each, {num_layers} in all"
        raise InvalidRequestError("device", device, allowed)
    ends = list(accumulate(counts))
    for place, layers in enumerate(map(range, [0, *ends], ends)):
        is_last = place == len(devices) - 1
        yield ModelPart(model, layers, has_embedding=place == 0, has_head=is_last), devices[place]
