"""web-rwkv, the engine of ai00, for the comparison, on WebGPU: `pip install web-rwkv-py==0.2.3 numpy`.

It runs models up to RWKV-6, and one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import web_rwkv_py

from tools.bench.peers.peer import Task, measure_peer


class WebRwkv:
    """web-rwkv as a `Peer`."""

    can_batch = False

    def __init__(self, task: Task) -> None:
        self._model = web_rwkv_py.Model(str(task.file))

    def decode(self, tokens: Sequence[int]) -> None:
        self._model.run(list(tokens))

    def prefill(self, tokens: Sequence[int]) -> int:
        self._model.clear_state()
        return int(np.argmax(self._model.run(list(tokens))))


if __name__ == "__main__":
    measure_peer(WebRwkv)
