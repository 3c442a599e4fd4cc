"""The places of LoRAs on a runner: one that no running request uses is given to another LoRA."""

from __future__ import annotations

from collections.abc import Collection

from rnn_engine.types import LoraPairs, Runner


class LoraPlaces:
    """Which LoRA, by its digest, is at which place of a runner."""

    def __init__(self, runner: Runner) -> None:
        self.replace_runner(runner)

    def replace_runner(self, runner: Runner) -> None:
        """Use `runner`, at whose places there is no LoRA yet."""
        self._runner = runner
        self._places: dict[str, int] = {}  # the one that was used last comes last

    def has_room(self, digests: Collection[str]) -> bool:
        """Return True if there are places for these LoRAs together."""
        return len(digests) <= self._runner.lora_room.places

    def put(self, lora: LoraPairs, in_use: Collection[str]) -> int:
        """Return the place of `lora`, after writing it to one whose LoRA is not `in_use`; `has_room` must be true."""
        place = self._places.pop(lora.digest, None)
        if place is None:
            if len(self._places) == self._runner.lora_room.places:
                del self._places[next(digest for digest in self._places if digest not in in_use)]
            place = min(set(range(self._runner.lora_room.places)) - set(self._places.values()))
            self._runner.write_lora(place, lora)
        self._places[lora.digest] = place
        return place
