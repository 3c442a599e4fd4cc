"""llama.cpp for the comparison, called through the C functions of `llama-cpp-python`, built from PyPI's source.

On the processor: `pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36`. On Vulkan (Debian: glslc,
libvulkan-dev, spirv-headers): the same with CMAKE_ARGS=-DGGML_VULKAN=on. The setting is then the number of the device;
llama.cpp uses a software device only if it is named. One build serves for both. LLAMA_CPP_LIB_PATH names a folder with
libraries that CMake has built separately.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Final

import llama_cpp
import numpy as np

from tools.bench.peers.peer import NUM_THREADS, VOCAB_SIZE, Task, measure_peer

_CONTEXT: Final = 1 << 16  # of all sequences; a state does not grow with it


class LlamaCpp:
    """llama.cpp as a `Peer`. Sequence number s of a step is llama.cpp's sequence s."""

    can_batch = True

    def __init__(self, task: Task) -> None:
        if task.setting:
            os.environ["GGML_VK_VISIBLE_DEVICES"] = task.setting
        llama_cpp.llama_backend_init()
        loading = llama_cpp.llama_model_default_params()
        loading.n_gpu_layers = 999 if task.setting else 0
        self._model = llama_cpp.llama_model_load_from_file(str(task.file).encode(), loading)
        context = llama_cpp.llama_context_default_params()
        context.n_seq_max = task.num_slots
        context.n_ctx = _CONTEXT
        context.n_batch = context.n_ubatch = max(task.max_tokens, task.num_slots)
        context.n_threads = context.n_threads_batch = NUM_THREADS
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        self._batch = llama_cpp.llama_batch_init(context.n_batch, 0, 1)
        self._ends = [0] * task.num_slots  # the position after each sequence

    def decode(self, tokens: Sequence[int]) -> None:
        for slot, token in enumerate(tokens):
            self._put(slot, token, slot, wanted=True)
        self._run(len(tokens))
        for slot in range(len(tokens)):
            self._logits(slot)

    def prefill(self, tokens: Sequence[int]) -> int:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
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
        if (code := llama_cpp.llama_decode(self._context, self._batch)) != 0:
            raise RuntimeError(f"llama_decode returned {code}")

    def _logits(self, place: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        row = llama_cpp.llama_get_logits_ith(self._context, place)
        return np.ctypeslib.as_array(ctypes.cast(row, ctypes.POINTER(ctypes.c_float)), (VOCAB_SIZE,)).copy()


if __name__ == "__main__":
    measure_peer(LlamaCpp)
