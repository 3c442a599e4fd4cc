"""Find under which name, and in which orientation, a torch or safetensors file stores each tensor of an RWKV model.

Files of torch and safetensors have BlinkDL's convention, or that of ai00's `.st` files. A version's layout says which
tensors ai00 names differently, and which it stores with their last two dimensions swapped: the low-rank adapters and
the tuned initial state.

Nothing in a file names its convention, but the shapes of its adapters show it: an adapter's outer dimension is the
model's width. The majority of the adapters that are not square decides for the whole file. If no shape decides, a file
counts as ai00's in two cases. It has one of ai00's names; or it has adapters, its name ends in `.st` and all its
tensors are f16, as ai00's converter writes them. Any other file counts as BlinkDL's.

GGUF files have a convention of their own: see `rnn_engine.model.ggml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from rnn_engine.model.layout import TensorSpec
from rnn_engine.model.stored import StoredTensor, Swap
from rnn_engine.tensor_files.source import TensorInfo

Tensors = Mapping[str, TensorInfo]

_WIDTH: Final = "D"  # the letter of a model's width


def locate_tensors(path: Path, specs: Sequence[TensorSpec], tensors: Tensors) -> dict[str, StoredTensor]:
    """Return how a torch or safetensors file stores tensors, by BlinkDL's names; unknown ones keep theirs."""
    by_stored_name = {_stored_name(spec, tensors): spec for spec in specs}
    swaps = _is_ai00(path, by_stored_name, tensors)
    stored = {}
    for name in tensors:
        spec = by_stored_name.get(name)
        if spec is None:
            stored[name] = StoredTensor(name)
        else:
            stored[spec.name] = StoredTensor(name, (Swap(),) if swaps and spec.ai00_swaps else ())
    return stored


def _stored_name(spec: TensorSpec, tensors: Tensors) -> str:
    for name in spec.file_names:
        if name in tensors:
            return name
    if spec.ai00_name is None or spec.name in tensors or spec.ai00_name not in tensors:
        return spec.name
    return spec.ai00_name


def _is_ai00(path: Path, by_stored_name: Mapping[str, TensorSpec], tensors: Tensors) -> bool:
    present = [(spec, name) for name, spec in by_stored_name.items() if name in tensors]
    adapters = [(spec, tensors[name]) for spec, name in present if spec.ai00_swaps and _WIDTH in spec.dims[-2:]]
    embedding = tensors.get("emb.weight")
    width = embedding.shape[-1] if embedding is not None and embedding.shape else None
    votes = [vote for spec, info in adapters if (vote := _swap_vote(spec, info, width)) is not None]
    if votes:
        return 2 * sum(votes) > len(votes)  # the others are then refused for their shapes
    if any(name != spec.name for spec, name in present):
        return True
    return bool(adapters) and path.suffix == ".st" and all(info.dtype == np.float16 for info in tensors.values())


def _swap_vote(spec: TensorSpec, info: TensorInfo, width: int | None) -> bool | None:
    """Return True if a matrix's shape shows it swapped, as in ai00's files, False if not, None if it shows neither."""
    if len(info.shape) < 2:
        return None
    rows, columns = info.shape[-2:]
    if (rows == width) == (columns == width):
        return None
    return (columns if spec.dims[-2] == _WIDTH else rows) == width
