"""Compute a model's fingerprint: a short digest of its weights, the same for the same weights in any file.

The fingerprint covers every tensor's name, element type, shape and bytes, in the order of the names. A tensor's bytes
are hashed by chunks, on all cores, and then the digests of the chunks are hashed. For a matrix in quantised blocks, the
name of the block format replaces the element type, and its codes and figures replace the bytes. Fingerprints of large
files are recorded on disk for later runs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rnn_engine.files import cache_folder, read_record, short_digest, write_record
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.binary_file import FileStamp
from rnn_engine.types import Model

_CHUNK_BYTES: Final = 4 << 20
_SHOWN_DIGITS: Final = 32  # of the digest's 64


def fingerprint(version: str, names: Iterable[str], read: Callable[[str], NDArray[Any] | Blocks]) -> str:
    """Return the fingerprint of a model, a digest of its RWKV `version` and its tensors, as 32 hexadecimal digits.

    Calls `read` for each of `names` to get the tensor. Blocks until all tensors are read; holds one at a time.
    """
    digest = hashlib.sha256(version.encode())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in sorted(names):
            digest.update(_describe(name, read(name), pool))
    return digest.hexdigest()[:_SHOWN_DIGITS]


def with_settings(weights: str, settings: str) -> str:
    """Return a fingerprint of a model's weights together with a text of settings that change the model's outputs.

    `weights` is the fingerprint of the weights alone; it is returned unchanged if `settings` is empty.
    """
    return hashlib.sha256(f"{weights} {settings}".encode()).hexdigest()[:_SHOWN_DIGITS] if settings else weights


def _describe(name: str, tensor: NDArray[Any] | Blocks, pool: ThreadPoolExecutor) -> bytes:
    """Return the bytes that one tensor adds to a model's fingerprint: name, type, shape, and digests of its chunks."""
    kind, arrays = (
        (tensor.format.name, [tensor.codes, tensor.figures])
        if isinstance(tensor, Blocks)
        else (tensor.dtype.name, [tensor])
    )
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    chunks = [part[start : start + _CHUNK_BYTES] for part in parts for start in range(0, len(part), _CHUNK_BYTES)]
    return f"\n{name} {kind} {tensor.shape} ".encode() + b"".join(pool.map(_digest, chunks))


def _digest(chunk: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(chunk.data).digest()


# Remember the fingerprints of large model files between runs, in the user's cache folder.
#
# A record is valid for one path and one `FileStamp`: a file that changed in any way is read again. Small models are
# quick to read and are not recorded.

RECORDED_BYTES = 256 << 20
"""The least size in bytes of a model file whose fingerprint is recorded for later runs."""

_RECIPE: Final = 1  # increased whenever `fingerprint` returns another value for the same weights
_SETTLED_NANOSECONDS: Final = 2 * 10**9  # a file changed more recently may change again with the same time
_log = logging.getLogger(__name__)


def recall(path: Path, stamp: FileStamp, compute: Callable[[], str]) -> str:
    """Return the fingerprint of the model file at `path`: the one recorded by an earlier run, else that of `compute`.

    A newly computed fingerprint is recorded, except for files smaller than `RECORDED_BYTES` and files changed within
    the last two seconds. A record is valid for one `path` and `stamp`.
    """
    if stamp.size < RECORDED_BYTES:
        return compute()
    resolved = str(path.resolve())
    key = {"recipe": _RECIPE, "path": resolved, **asdict(stamp)}
    record = cache_folder() / "fingerprints" / f"{short_digest(resolved)}.json"
    kept = read_record(record) or {}
    known = kept.pop("fingerprint", None)
    if isinstance(known, str) and kept == key:
        return known
    settled = time.time_ns() - max(stamp.modified, stamp.status_changed) > _SETTLED_NANOSECONDS
    found = compute()
    if settled:
        _write(record, {**key, "fingerprint": found})
    return found


def _write(record: Path, content: dict[str, object]) -> None:
    try:
        write_record(record, content)
    except OSError as error:
        _log.warning("the model's fingerprint can't be saved, so the next load computes it again: %s", error)


# rwkv-metal's fingerprint of a model, by which its state files name the model for which they were made.
#
# It covers the small tensors of an RWKV-7, and the first rows of two matrices, rounded to bf16. See
# `rwkv_metal.model.initial_state` of rwkv-metal 0.4.0.

_METAL_STEM: Final = {
    "ln0.weight": "blocks.0.ln0.weight",
    "ln0.bias": "blocks.0.ln0.bias",
    "ln_out.weight": "ln_out.weight",
    "ln_out.bias": "ln_out.bias",
}
_METAL_NORMS: Final = ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias")
_METAL_TIME_MIX: Final = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "k_k", "k_a", "r_k", "ln_x.weight", "ln_x.bias")


def metal_fingerprint(model: Model) -> str | None:
    """Return the fingerprint that rwkv-metal computes of a model; None for models that it does not have.

    It has RWKV-7 in plain numbers. Reads the small tensors and two matrices. Raises ModelError as `Model.tensor` does.
    """
    shape = model.shape
    last = shape.num_layers - 1
    rows = {
        "blocks.0.tmix.r_proj": "blocks.0.att.receptance.weight",
        f"blocks.{last}.cmix.value": f"blocks.{last}.ffn.value.weight",
    }
    if shape.version != "v7" or any(model.block_type(name) is not None for name in rows.values()):
        return None
    names = dict(_METAL_STEM)
    for layer in range(shape.num_layers):
        block = f"blocks.{layer}"
        names |= {f"{block}.{name}": f"{block}.{name}" for name in _METAL_NORMS}
        names |= {f"{block}.tmix.{name}": f"{block}.att.{name}" for name in _METAL_TIME_MIX}
        names[f"{block}.cmix.x_k"] = f"{block}.ffn.x_k"
    heads, head_size = model.tensor("blocks.0.att.r_k").shape
    sizes = f"{shape.num_layers},{shape.width},{heads},{head_size}"
    digest = hashlib.sha256(f"rwkv-state-base-v1\n{sizes}\n".encode())
    for name, ours in names.items():
        _add_in_bf16(digest, name, model.tensor(ours))
    for name, ours in rows.items():
        _add_in_bf16(digest, name, model.tensor(ours)[0])
    return digest.hexdigest()


def _add_in_bf16(digest: hashlib._Hash, name: str, values: NDArray[Any]) -> None:
    digest.update(name.encode() + b"\0")
    digest.update(values.reshape(-1).astype(ml_dtypes.bfloat16).astype("<f4").tobytes())
