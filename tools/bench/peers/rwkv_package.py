"""BlinkDL's `rwkv` package for the comparison: `pip install rwkv==0.8.32 torch numpy`, with torch's CPU build.

The setting is one of the package's strategies. It runs one sequence at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from tools.bench.peers.peer import NUM_THREADS, Task, measure_peer


class RwkvPackage:
    """The `rwkv` package as a `Peer`."""

    can_batch = False

    def __init__(self, task: Task) -> None:
        os.environ |= {"RWKV_JIT_ON": "1", "RWKV_CUDA_ON": "0", "RWKV_V7_ON": "1" if task.version == "v7" else "0"}
        from rwkv.model import RWKV  # reads the environment when it is imported

        torch.set_num_threads(NUM_THREADS)
        self._model = RWKV(str(task.file.with_suffix("")), task.setting)
        self._state: Any = None

    def decode(self, tokens: Sequence[int]) -> None:
        self._run(tokens)

    def prefill(self, tokens: Sequence[int]) -> int:
        self._state = None
        return int(self._run(tokens).argmax())

    def _run(self, tokens: Sequence[int]) -> Any:  # noqa: ANN401
        logits, self._state = self._model.forward(list(tokens), self._state)
        return logits.numpy()


if __name__ == "__main__":
    measure_peer(RwkvPackage)
