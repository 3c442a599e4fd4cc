"""Make the golden files of models for retrieval: a small EmbeddingRWKV and a reranker of its states.

The package rwkv-emb computes the vectors and scores with its own code, in f32 on the CPU. It is written for CUDA: its
source is changed on the way in by `_REPLACED`, and its kernel's recurrence is written out in `_recurrence`.

pip install torch==2.13.0                # with this project, in an environment of its own
pip install --no-deps rwkv-emb==0.2.6
python -m tools.golden.retrieval tests/golden/retrieval
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import Tensor

from rnn_engine.versions.table import VERSIONS
from rnn_engine.versions.v7.layout import AdapterRanks
from rnn_engine.versions.v7_retrieval import LAYER_INDEX
from tests.support.models import TensorModel, embedding_shape, random_model, reranker_shape, tiny_shape

_PACKAGE: Final = "rwkv_emb"
_REPLACED: Final = (
    ("MyModule = torch.jit.ScriptModule", "MyModule = nn.Module"),
    ("MyFunction = torch.jit.script_method", "MyFunction = lambda function: function"),
    ("MyStatic = torch.jit.script", "MyStatic = lambda function: function"),
    ("DTYPE = torch.half", "DTYPE = torch.float"),
    ('"cuda"', '"cpu"'),
    ("'cuda'", "'cpu'"),
)
_TASKS: Final = {"retrieval": "[RETR]", "similarity": "[STS]", "classification": "[CLS]"}
EMBEDDING: Final = embedding_shape(
    tiny_shape(layers=3, width=128, head_size=64, ffn=160, vocab=300, ranks=AdapterRanks(w=8, a=8, v=8, g=16))
)
RERANKER: Final = reranker_shape(  # the package knows no other ranks and channel mix for this width
    tiny_shape(layers=2, width=128, head_size=64, ranks=AdapterRanks(w=32, a=32, v=32, g=32))
)
LAYERS: Final = [2, 0]  # of the embedding model, whose states the reranker's layers read


def _recurrence(state: Tensor, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Run the kernel rwkv7_state_fwd_fp16.cu on tokens [..., T, D]; `state` [..., H, N, N] changes in place."""
    size = state.shape[-1]
    outputs = []
    for t in range(r.shape[-2]):
        r_t, w_t, k_t, v_t, a_t, b_t = (values[..., t, :].unflatten(-1, (-1, size)) for values in (r, w, k, v, a, b))
        decay = torch.exp(-0.6065306597 * w_t)
        removed = torch.einsum("...ij,...j->...i", state, a_t)
        state.copy_(
            state * decay[..., None, :] + removed[..., None] * b_t[..., None, :] + v_t[..., None] * k_t[..., None, :]
        )
        outputs.append(torch.einsum("...ij,...j->...i", state, r_t).flatten(-2))
    return torch.stack(outputs, -2)


def load_package() -> Any:  # noqa: ANN401 - the package has no types
    """Return the package's module `model`, changed to compute in f32 on the CPU."""
    spec = find_spec(_PACKAGE)
    assert spec is not None, "pip install rwkv-emb"
    [root] = map(Path, spec.submodule_search_locations or ())
    package, reference = ModuleType(_PACKAGE), ModuleType(f"{_PACKAGE}.reference")
    loaded = {_PACKAGE: package, reference.__name__: reference, "transformers": MagicMock()}
    with patch.dict(sys.modules, loaded), patch("torch.utils.cpp_extension.load"):
        rwkv7 = _execute(root / "reference" / "rwkv7.py", f"{_PACKAGE}.reference.rwkv7", reference.__name__)
        rwkv7.RWKV7_OP = rwkv7.RWKV7_BATCH_OP = _recurrence
        rwkv7.RWKV7_ONE_OP = lambda state, *inputs: _recurrence(state, *(values[None] for values in inputs))[0]
        sys.modules[rwkv7.__name__] = rwkv7
        return _execute(root / "model.py", f"{_PACKAGE}.model", _PACKAGE)


def _execute(path: Path, name: str, package: str) -> Any:  # noqa: ANN401
    source = path.read_text("utf-8")
    for old, new in _REPLACED:
        source = source.replace(old, new)
    module = ModuleType(name)
    module.__dict__.update(__file__=str(path), __package__=package)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def _save(model: TensorModel, path: Path, **more: object) -> Path:
    """Write a model as torch does, with the names of the published files and vectors as [1, 1, D]."""
    specs = VERSIONS.get(model.shape.version).layout.specs(model.shape.num_layers)
    tensors: dict[str, object] = {}
    for spec in specs:
        if spec.name in model.tensors:
            values = torch.from_numpy(model.tensors[spec.name])
            is_mix = spec.dims == ("D",) and ".att." in spec.name and ".ln_x." not in spec.name
            tensors[spec.file_name] = values.reshape(1, 1, -1) if is_mix or spec.name.endswith("ffn.x_k") else values
    torch.save(tensors | more, path)
    return path


def copy_in_f32(path: Path, folder: Path) -> Path:
    """Copy a file to `folder` with its tensors in f32, since the package computes some products in a file's type.

    The package maps the file into memory, so it must not change while the model is used.
    """
    content = torch.load(path, weights_only=True)
    copy = folder / path.name
    torch.save({name: value.float() if isinstance(value, Tensor) else value for name, value in content.items()}, copy)
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.golden.retrieval",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="folder for the files; existing files of the same names are replaced")
    options = parser.parse_args()
    with TemporaryDirectory() as copies:
        options.folder.mkdir(parents=True, exist_ok=True)
        write(options.folder, Path(copies))


def _open(embedding: Path, reranker: Path, copies: Path) -> tuple[Any, Any]:
    """Open both models with the package, from copies in f32."""
    package = load_package()
    return (
        package.EmbeddingRWKV(str(copy_in_f32(embedding, copies))),
        package.RWKVReRanker(str(copy_in_f32(reranker, copies))),
    )


def write(folder: Path, copies: Path) -> None:
    """Write both models, and the vectors and scores of some texts, to `folder`."""
    drawn = random_model(EMBEDDING, 31, np.float16, layer0_v=False, bits=11)
    embedding_path = _save(drawn, folder / "embedding.pth", **{"rwkv.head.weight": torch.ones(2, 2)})
    drawn = random_model(RERANKER, 32, np.float16, layer0_v=False, bits=11)
    reranker_path = _save(drawn, folder / "reranker.pth", **{LAYER_INDEX: LAYERS})

    embedding, reranker = _open(embedding_path, reranker_path, copies)
    embedding.eos_token_id = EMBEDDING.vocab_size - 1
    generator = np.random.default_rng(33)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for number, (length, end_positions) in enumerate([(1, []), (12, []), (40, []), (25, [9, 17])]):
        tokens = generator.integers(1, EMBEDDING.vocab_size - 1, length)
        tokens[end_positions] = embedding.eos_token_id
        ids = [*tokens.tolist(), embedding.eos_token_id]
        arrays[f"tokens.{number}"] = np.array(ids, np.int32)
        for task, name in _TASKS.items():
            vector, state = embedding.forward(ids, None, True, name)
            arrays[f"{task}.{number}"] = vector.numpy().reshape(-1)
        if number == 1:
            arrays["wkv.1"] = state[1].numpy()  # [L, H, value, key]
        arrays[f"score.{number}"] = reranker(state[1][:, None].clone()).numpy()
    np.savez_compressed(folder / "retrieval.npz", allow_pickle=False, **arrays)
    print(f"vectors and scores of {number + 1} texts: {[float(arrays[f'score.{n}'][0]) for n in range(number + 1)]}")


if __name__ == "__main__":
    main()
