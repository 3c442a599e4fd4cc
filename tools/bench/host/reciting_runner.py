"""A runner whose every sequence recites one JSON document, so that answers are the same with a grammar and without."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnn_engine.tokenizer import Tokenizer
from rnn_engine.types import F32, I32, Batch, ModelShape, Readout, State, TokenRun
from tools.bench.host.device_clock import DeviceClock, RealClock
from tools.bench.host.instant_runner import InstantRunner

_PERSON = {
    "name": "Ada Marie Example",
    "age": 36,
    "address": {"street": "12 Long Road, behind the old church", "city": "Lyon", "country": "France"},
    "languages": ["english", "french", "german"],
    "biography": "She wrote her first program at eleven and has taught people how to write theirs ever since.",
    "active": True,
}
DOCUMENT = json.dumps(_PERSON)

_TEXT = {"type": "string"}
_ADDRESS = dict.fromkeys(("street", "city", "country"), _TEXT)
_FIELDS = {
    "name": _TEXT,
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "address": {"type": "object", "properties": _ADDRESS, "required": [*_ADDRESS], "additionalProperties": False},
    "languages": {"type": "array", "items": {"enum": ["english", "french", "german", "chinese"]}},
    "biography": _TEXT,
    "active": {"type": "boolean"},
}
SCHEMA = {"type": "object", "properties": _FIELDS, "required": [*_FIELDS], "additionalProperties": False}
"""A schema that `DOCUMENT` follows."""

_NUM_CANDIDATES = 128
_SURE, _OTHER = 10.0, -5.0  # logits


@dataclass(frozen=True, slots=True)
class _Row:
    ids: I32  # [K]
    logits: F32  # [K]


class RecitingRunner(InstantRunner):
    """A runner whose likeliest token is always the next of `DOCUMENT`, and token 0 after its end.

    Prompts consist of token 0.
    """

    def __init__(
        self,
        shape: ModelShape,
        num_slots: int,
        tokenizer: Tokenizer,
        step_seconds: float,
        clock: DeviceClock | RealClock | None = None,
    ) -> None:
        super().__init__(shape, num_slots, step_seconds, max_draws=0, clock=clock)
        self._tokenizer = tokenizer
        self._recited = [0] * num_slots  # bytes
        document = DOCUMENT.encode()
        rest = (document[start:].decode() for start in range(len(document)))
        self._recited_rows = [_row(token) for token in (*(tokenizer.encode(text)[0] for text in rest), 0)]
        self._logsumexp = np.full(self.max_rows, _SURE, np.float32)

    def submit(self, batch: Batch) -> Any:  # noqa: ANN401
        ticket = super().submit(batch)
        for run in batch:
            if callable(run.masks):  # not in all commits
                run.masks()
        return ticket

    def step(self, batch: Batch) -> Readout:
        rows = [row for run in batch for row in self._rows_of(run)]
        logsumexp = self._logsumexp[: len(rows)]
        return Readout(
            ids=np.stack([row.ids for row in rows]),
            logits=np.stack([row.logits for row in rows]),
            logsumexp=logsumexp,
            allowed_logsumexp=logsumexp,
            target_logits=self._targets[: len(rows)],
            sound=self._sound[: len(batch)],
            full_row=lambda row: self._scattered(rows[row]),
        )

    def write_state(self, slot: int, state: State | None) -> None:  # noqa: ARG002
        self._recited[slot] = 0

    def _rows_of(self, run: TokenRun) -> list[_Row]:
        """Return the rows of the last tokens of `run`."""
        ends = []
        for token in run.tokens:
            self._recited[run.slot] += len(self._tokenizer.decode_bytes(token))
            ends.append(self._recited[run.slot])
        return [self._recited_rows[end] for end in ends[len(ends) - run.rows :]]

    def _scattered(self, row: _Row) -> F32:
        full: F32 = np.full(self.shape.vocab_size, _OTHER, np.float32)
        full[row.ids] = row.logits
        return full


def _row(token: int) -> _Row:
    others = [other for other in range(1, _NUM_CANDIDATES + 1) if other != token]
    logits = np.full(_NUM_CANDIDATES, _OTHER, np.float32)
    logits[0] = _SURE
    return _Row(np.array([token, *others[: _NUM_CANDIDATES - 1]], np.int32), logits)
