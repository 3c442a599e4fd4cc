"""This engine's forward pass for the comparison. The setting is a device, as for `rnn-engine serve`."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine.loading.runner import load_runner, open_model
from rnn_engine.types import TokenRun, run_step
from tools.bench.peers.peer import Task, measure_peer


class RnnEngine:
    """This engine as a `Peer`."""

    can_batch = True

    def __init__(self, task: Task) -> None:
        with open_model(task.file) as model:
            self._runner = load_runner(model, task.setting, num_slots=task.num_slots)

    def decode(self, tokens: Sequence[int]) -> None:
        run_step(self._runner, [TokenRun(slot, [token], rows=1) for slot, token in enumerate(tokens)])

    def prefill(self, tokens: Sequence[int]) -> int:
        self._runner.write_state(0, None)
        size = self._runner.max_tokens
        *parts, last = (tokens[start : start + size] for start in range(0, len(tokens), size))
        for part in parts:
            run_step(self._runner, [TokenRun(0, part)])
        return int(run_step(self._runner, [TokenRun(0, last, rows=1)]).ids[0, 0])


if __name__ == "__main__":
    measure_peer(RnnEngine)
