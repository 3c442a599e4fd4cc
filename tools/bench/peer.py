"""`python -m tools.bench.peer`: measure one engine of `tools.bench.peers`.

It reads a `Task` as JSON from stdin, and prints what `measure` returns as JSON. Each engine has an environment of its
own, so this module imports only numpy and the engine.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

NUM_THREADS: Final = os.cpu_count() or 1
VOCAB_SIZE: Final = 65536
SLOTS: Final = (1, 8)  # sequences of a decode step
LENGTH: Final = 64  # tokens of a prompt
_REPEATS: Final = 5
_WARM_UP: Final = 2
_CONTEXT: Final = 1 << 16  # of all sequences of llama.cpp; a state does not grow with it


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

    def decode(self, tokens: Sequence[int]) -> None:
        """Run one step that adds token `tokens[s]` to sequence s, from the sequence's present state."""
        ...

    def prefill(self, tokens: Sequence[int]) -> int:
        """Run a prompt from an empty state, and return the likeliest token after the prompt."""
        ...


class RnnEngine:
    """This engine's forward pass. The setting is a device, as for `rnn-engine serve`."""

    can_batch = True

    def __init__(self, task: Task) -> None:
        from rnn_engine import types
        from rnn_engine.loading.runner import load_runner, open_model

        self._types = types
        with open_model(Path(task.file)) as model:
            self._runner = load_runner(model, task.setting, num_slots=max(SLOTS))

    def decode(self, tokens: Sequence[int]) -> None:
        self._run([self._types.TokenRun(slot, [token], rows=1) for slot, token in enumerate(tokens)])

    def prefill(self, tokens: Sequence[int]) -> int:
        self._runner.write_state(0, None)
        return self._run([self._types.TokenRun(0, list(tokens), rows=1)])

    def _run(self, batch: Sequence[Any]) -> int:
        return int(self._types.run_step(self._runner, batch).ids[0, 0])


class WebRwkv:
    """web-rwkv, the engine of ai00, on WebGPU: `pip install web-rwkv-py==0.2.3 numpy`. Runs models up to RWKV-6."""

    can_batch = False

    def __init__(self, task: Task) -> None:
        import web_rwkv_py

        self._model = web_rwkv_py.Model(task.file)

    def decode(self, tokens: Sequence[int]) -> None:
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

    def decode(self, tokens: Sequence[int]) -> None:
        self._run(tokens)

    def prefill(self, tokens: Sequence[int]) -> int:
        self._state = None
        return int(self._run(tokens).argmax())

    def _run(self, tokens: Sequence[int]) -> Any:  # noqa: ANN401
        logits, self._state = self._model.forward(list(tokens), self._state)
        return logits.numpy()


class LlamaCpp:
    """llama.cpp. The setting is the number of a Vulkan device, or empty for the processor.

    It is built from PyPI's source: `pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36`, for Vulkan
    (Debian: glslc, libvulkan-dev, spirv-headers) with CMAKE_ARGS=-DGGML_VULKAN=on; one build serves for both.
    LLAMA_CPP_LIB_PATH names a folder with libraries that CMake has built separately.
    """

    can_batch = True

    def __init__(self, task: Task) -> None:
        if task.setting:
            os.environ["GGML_VK_VISIBLE_DEVICES"] = task.setting
        import llama_cpp

        self._lib = llama_cpp
        llama_cpp.llama_backend_init()
        loading = llama_cpp.llama_model_default_params()
        loading.n_gpu_layers = 999 if task.setting else 0
        self._model = llama_cpp.llama_model_load_from_file(task.file.encode(), loading)
        context = llama_cpp.llama_context_default_params()
        context.n_seq_max = max(SLOTS)
        context.n_ctx = _CONTEXT
        context.n_batch = context.n_ubatch = max(LENGTH, *SLOTS)
        context.n_threads = context.n_threads_batch = NUM_THREADS
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        self._batch = llama_cpp.llama_batch_init(context.n_batch, 0, 1)
        self._ends = [0] * max(SLOTS)  # the position after each sequence

    def decode(self, tokens: Sequence[int]) -> None:
        for slot, token in enumerate(tokens):
            self._put(slot, token, slot, wanted=True)
        self._run(len(tokens))
        for slot in range(len(tokens)):
            self._logits(slot)

    def prefill(self, tokens: Sequence[int]) -> int:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        self._ends = [0] * len(self._ends)
        for place, token in enumerate(tokens):
            self._put(place, token, 0, wanted=place == len(tokens) - 1)
        self._run(len(tokens))
        return int(self._logits(len(tokens) - 1).argmax())

    def _put(self, place: int, token: int, slot: int, *, wanted: bool) -> None:
        self._batch.token[place] = token
        self._batch.pos[place] = self._ends[slot]
        self._batch.n_seq_id[place] = 1
        self._batch.seq_id[place][0] = slot
        self._batch.logits[place] = wanted
        self._ends[slot] += 1

    def _run(self, num_tokens: int) -> None:
        self._batch.n_tokens = num_tokens
        if (code := self._lib.llama_decode(self._context, self._batch)) != 0:
            raise RuntimeError(f"llama_decode returned {code}")

    def _logits(self, place: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        row = self._lib.llama_get_logits_ith(self._context, place)
        return np.ctypeslib.as_array(ctypes.cast(row, ctypes.POINTER(ctypes.c_float)), (VOCAB_SIZE,)).copy()


PEERS: Final[Mapping[str, Callable[[Task], Peer]]] = {
    "rnn-engine": RnnEngine,
    "web-rwkv": WebRwkv,
    "rwkv": RwkvPackage,
    "llama.cpp": LlamaCpp,
}


def measure(peer: Peer) -> dict[str, Any]:
    """Return the tokens per second of the median of repeated steps and prompts, and the likeliest token after a prompt.

    Each figure is once by the clock, and once by the seconds of the process on all cores.
    """
    prompt = range(1, LENGTH + 1)
    figures = _speeds(f"prefill, {LENGTH} tokens", LENGTH, partial(peer.prefill, prompt))
    choice = peer.prefill(prompt)
    for slots in SLOTS:
        if slots == 1 or peer.can_batch:
            name = f"decode, {slots} slot{'s' * (slots > 1)}"
            figures |= _speeds(name, slots, partial(peer.decode, range(1, slots + 1)))
    return {"figures": figures, "choice": choice}


def _speeds(name: str, num_tokens: int, work: Callable[[], object]) -> dict[str, float]:
    """Return the figures of `work`, which runs `num_tokens` tokens."""
    for _ in range(_WARM_UP):
        work()
    seconds, cpu_seconds = list[float](), list[float]()
    for _ in range(_REPEATS):
        begun, cpu_begun = time.perf_counter(), time.process_time()
        work()
        seconds.append(time.perf_counter() - begun)
        cpu_seconds.append(time.process_time() - cpu_begun)
    return {
        name: num_tokens / statistics.median(seconds),
        f"{name}, a processor second": num_tokens / statistics.median(cpu_seconds),
    }


if __name__ == "__main__":
    task = Task(**json.load(sys.stdin))
    print(json.dumps(measure(PEERS[task.engine](task))))
