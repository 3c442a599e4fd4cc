"""A tiny embedding model in ONNX with its tokenizer, in a folder as sentence-transformers writes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from rnn_engine.types import F32

WORDS = ("[PAD]", "[UNK]", "query", ":", "the", "sky", "sea", "is", "blue", "deep", ".")
TABLE: F32 = np.random.default_rng(1).standard_normal((len(WORDS), 4)).astype(np.float32)  # [words, D]


def save_embedder(folder: Path, *, first: bool = False, pooled: bool = False) -> Path:
    """Write a model whose vector of a token is its row of `TABLE`.

    With `first` its folder asks for the first token's vector; with `pooled` the model itself adds the vectors up.
    """
    (folder / "1_Pooling").mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"pooling_mode_cls_token": first, "pooling_mode_mean_tokens": not first}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    onnx.save(_model(pooled), folder / "model.onnx")
    return folder


def _model(pooled: bool) -> onnx.ModelProto:
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"])]
    initializers = [numpy_helper.from_array(TABLE, "table")]
    if pooled:
        initializers.append(numpy_helper.from_array(np.array([1], np.int64), "axes"))
        nodes.append(helper.make_node("ReduceSum", ["rows", "axes"], ["sums"], keepdims=0))
    sizes: list[str | int | None] = ["texts", 4] if pooled else ["texts", "tokens", 4]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("sums" if pooled else "rows", TensorProto.FLOAT, sizes)
    graph = helper.make_graph(nodes, "embedder", inputs, [output], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
