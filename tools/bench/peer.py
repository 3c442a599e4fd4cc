"""`python -m tools.bench.peer`: measure one engine of `tools.bench.peers`.

It reads a `Task` as JSON from stdin, and prints what `measure` returns as JSON. Each engine has an environment of its
own, so this module imports only numpy and the engine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

NUM_THREADS: Final = os.cpu_count() or 1
VOCAB_SIZE: Final = 65536
SLOTS: Final = (1, 8)  # sequences of a decode step
LENGTHS: Final = (64, 512)  # tokens of a prompt
_REPEATS: Final = 5
_STEPS: Final = 16  # of decode
_CONTEXT: Final = 1 << 13  # of all sequences of llama.cpp; a state does not grow with it


@dataclass(frozen=True, slots=True)
class Task:
    """What a process has to measure: an engine's name, a model file in its format, and how the engine runs."""

    engine: str  # of `PEERS`
    file: str
    version: str  # such as "v7"
    setting: str = ""  # where or how it runs, in the engine's words


class Peer(Protocol):
    """A loaded engine and model to measure. When a method returns, its results are on the host."""

    can_batch: bool  # if one step may run several sequences

    def decode(self, tokens: Sequence[int], steps: int) -> None:
        """Run `steps` steps, each of which adds a token to every sequence s, the first `tokens[s]`."""
        ...

    def prefill(self, tokens: Sequence[int]) -> int:
        """Run a prompt from an empty state, and return the likeliest token after the prompt."""
        ...


class RnnEngine:
    """This engine's forward pass. The setting is a device, as for `rnn-engine serve`."""

    can_batch = True

    def __init__(self, task: Task) -> None:
        from rnn_engine import types
        from rnn_engine.loading.memory import cpu_weights
        from rnn_engine.loading.runner import RunnerSize, load_runner, open_model

        self._types = types
        with open_model(Path(task.file)) as model:
            weights = cpu_weights(model, None) if task.setting == "cpu" else "f16"
            self._runner = load_runner(model, task.setting, weights=weights, size=RunnerSize(max(SLOTS)))

    def decode(self, tokens: Sequence[int], steps: int) -> None:
        for _ in range(steps):
            self._run([self._types.TokenRun(slot, [token], rows=1) for slot, token in enumerate(tokens)])

    def prefill(self, tokens: Sequence[int]) -> int:
        self._runner.write_state(0, None)
        for start in range(0, len(tokens), most := self._runner.max_tokens):
            choice = self._run([self._types.TokenRun(0, list(tokens[start : start + most]), rows=1)])
        return choice

    def _run(self, batch: Sequence[Any]) -> int:
        return int(self._types.run_step(self._runner, batch).ids[0, 0])


class WebRwkv:
    """web-rwkv, the engine of ai00, on WebGPU: `pip install web-rwkv-py==0.2.3 numpy`. Runs models up to RWKV-6."""

    can_batch = False

    def __init__(self, task: Task) -> None:
        import web_rwkv_py

        self._model = web_rwkv_py.Model(task.file)

    def decode(self, tokens: Sequence[int], steps: int) -> None:
        for _ in range(steps):
            self._model.run(list(tokens))

    def prefill(self, tokens: Sequence[int]) -> int:
        self._model.clear_state()
        return int(np.argmax(self._model.run(list(tokens))))


class RwkvPackage:
    """BlinkDL's package, with torch's CPU build: `pip install rwkv==0.8.32 torch numpy`. The setting is a strategy."""

    can_batch = False

    def __init__(self, task: Task) -> None:
        os.environ |= {"RWKV_JIT_ON": "1", "RWKV_CUDA_ON": "0", "RWKV_V7_ON": "1" if task.version == "v7" else "0"}
        import torch
        from rwkv.model import RWKV  # reads the environment when it is imported

        torch.set_num_threads(NUM_THREADS)
        self._model = RWKV(task.file.removesuffix(".pth"), task.setting)
        self._state: Any = None

    def decode(self, tokens: Sequence[int], steps: int) -> None:
        for _ in range(steps):
            self._run(tokens)

    def prefill(self, tokens: Sequence[int]) -> int:
        self._state = None
        return int(self._run(tokens).argmax())

    def _run(self, tokens: Sequence[int]) -> Any:  # noqa: ANN401
        logits, self._state = self._model.forward(list(tokens), self._state)
        return logits.numpy()


class LlamaCpp:
    """llama.cpp on the processor, asked through its server: `pip install xllamacpp==2026.10.11549 numpy`."""

    can_batch = True

    def __init__(self, task: Task) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = task.file
        params.n_ctx, params.n_parallel, params.n_gpu_layers = _CONTEXT, max(SLOTS), 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = NUM_THREADS
        params.warmup, params.verbosity, params.cache_ram_mib = False, 0, 0
        self._server = xllamacpp.Server(params)
        self._pool = ThreadPoolExecutor(max(SLOTS))

    def decode(self, tokens: Sequence[int], steps: int) -> None:
        list(self._pool.map(lambda token: self._complete([token], steps), tokens))

    def prefill(self, tokens: Sequence[int]) -> int:
        choice = self._complete(tokens, 1, n_probs=1)["choices"][0]
        return int(choice["logprobs"]["content"][0]["id"])

    def _complete(self, prompt: Sequence[int], count: int, **more: int) -> Any:  # noqa: ANN401
        wanted = {"prompt": list(prompt), "n_predict": count, "temperature": 0.0, "ignore_eos": True}
        return self._server.handle_completions({**wanted, "cache_prompt": False, **more})


PEERS: Final[Mapping[str, Callable[[Task], Peer]]] = {
    "rnn-engine": RnnEngine,
    "web-rwkv": WebRwkv,
    "rwkv": RwkvPackage,
    "llama.cpp": LlamaCpp,
}


def measure(load: Callable[[], Peer]) -> dict[str, Any]:
    """Return what `load` and its peer need, tokens per second, and the likeliest token after a prompt.

    Speeds are of the median of repeated steps and prompts; each is once by the clock, and once by the seconds of the
    process on all cores.
    """
    begun, before = time.perf_counter(), _resident_mb()
    peer = load()
    choice = peer.prefill(range(1, 2))
    figures = {"seconds to load, with a token": time.perf_counter() - begun}
    for length in LENGTHS:
        prompt = range(1, length + 1)
        figures |= _speeds(f"prefill, {length} tokens", length, partial(peer.prefill, prompt))
        choice = peer.prefill(prompt)
    for slots in SLOTS:
        if slots == 1 or peer.can_batch:
            name = f"decode, {slots} slot{'s' * (slots > 1)}"
            decode = partial(peer.decode, range(1, slots + 1))
            figures |= _speeds(name, slots * _STEPS, partial(decode, 1 + _STEPS), partial(decode, 1))
    return {"figures": figures | {"MB held": _resident_mb() - before}, "choice": choice}


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def _speeds(
    name: str, num_tokens: int, work: Callable[[], object], less: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Return the figures of `work`, which runs `num_tokens` more tokens than `less`."""
    work()
    seconds, cpu_seconds = list[float](), list[float]()
    for _ in range(_REPEATS):
        times = []
        for each in (less, work):
            begun, cpu_begun = time.perf_counter(), time.process_time()
            each()
            times.append((time.perf_counter() - begun, time.process_time() - cpu_begun))
        seconds.append(times[1][0] - times[0][0])
        cpu_seconds.append(times[1][1] - times[0][1])
    return {
        name: num_tokens / statistics.median(seconds),
        f"{name}, a processor second": num_tokens / statistics.median(cpu_seconds),
    }


if __name__ == "__main__":
    task = Task(**json.load(sys.stdin))
    print(json.dumps(measure(partial(PEERS[task.engine], task))))
