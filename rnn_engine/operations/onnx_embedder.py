"""Load and run an ONNX embedding model, such as of sentence-transformers, on the CPU. Needs the extra `embeds`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rnn_engine.errors import ModelError, needs_extra
from rnn_engine.files import read_text
from rnn_engine.types import F32

if TYPE_CHECKING:
    import onnxruntime
    from tokenizers import Tokenizer


MAX_TOKENS: Final = 512
_FILES: Final = ("model.onnx", "onnx/model.onnx", "model_optimized.onnx", "model_quantized.onnx")
_TOKENIZER: Final = "tokenizer.json"
_PART_CHARACTERS: Final = 1 << 14  # of a text that is split into pieces
_POOLING: Final = "1_Pooling/config.json"


class Embedder:
    """A loaded ONNX embedding model with its tokenizer. Thread-safe."""

    def __init__(self, name: str, tokenizer: Tokenizer, session: onnxruntime.InferenceSession, first: bool) -> None:
        """Create an embedder. If `first`, a text's embedding is its first token's vector, else the mean of all."""
        self.name = name
        self._inputs = [each.name for each in session.get_inputs()]
        self._splitting = tokenizer.to_str()
        self._tokenizer = tokenizer
        self._session = session
        self._first = first
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.enable_padding(pad_id=tokenizer.token_to_id("[PAD]") or tokenizer.token_to_id("<pad>") or 0)

    def split(self, text: str, max_tokens: int) -> Sequence[str]:
        """Split a text into chunks of at most `max_tokens` tokens, at ends of paragraphs, sentences or words."""
        from semantic_text_splitter import TextSplitter

        splitter = TextSplitter.from_huggingface_tokenizer_str(self._splitting, max_tokens)
        return [piece for part in _parts(text) for piece in splitter.chunks(part)]

    def embed(self, texts: Sequence[str]) -> F32:
        """Return the embedding of each text's first MAX_TOKENS tokens, scaled to length 1: [len(texts), D]."""
        encoded = self._tokenizer.encode_batch(list(texts))
        mask = np.array([each.attention_mask for each in encoded], np.int64)  # [texts, tokens]
        given = {
            "input_ids": np.array([each.ids for each in encoded], np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([each.type_ids for each in encoded], np.int64),
        }
        [found, *_] = self._session.run(None, {name: given[name] for name in self._inputs})
        vectors = np.asarray(found, np.float32)  # [texts, tokens, D], or pooled already
        if vectors.ndim == 3:
            weights = mask[:, :, np.newaxis].astype(np.float32)
            total = np.maximum(weights.sum(axis=1), 1)
            vectors = vectors[:, 0] if self._first else (vectors * weights).sum(axis=1) / total
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)


def _parts(text: str) -> Iterator[str]:
    """Cut a text into parts for the splitter, whose time grows with the square of a text without white space."""
    start = 0
    while len(text) - start > _PART_CHARACTERS:
        most = start + _PART_CHARACTERS
        ends = (text.rfind(mark, start, most) + len(mark) for mark in ("\n\n", "\n", " "))
        end = next((end for end in ends if end > start + _PART_CHARACTERS // 2), most)
        yield text[start:end]
        start = end
    yield text[start:]


def load_embedder(folder: Path) -> Embedder:
    """Load the embedding model in a folder. Raises ModelError if a file or the extra is missing, or does not fit."""
    with needs_extra("embeds", "an embedding model", ModelError):
        import onnxruntime
        import semantic_text_splitter  # noqa: F401
        from tokenizers import Tokenizer
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None or not (folder / _TOKENIZER).is_file():
        raise ModelError(
            f"{folder} is not an embedding model; expected {_TOKENIZER} and one of {', '.join(_FILES)} in it"
        )
    try:
        content: dict[str, Any] = json.loads(read_text(folder / _TOKENIZER))
        tokenizer = Tokenizer.from_str(json.dumps({**content, "truncation": None, "padding": None}))
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        pooling = json.loads(read_text(folder / _POOLING)) if (folder / _POOLING).is_file() else {}
        embedder = Embedder(folder.name, tokenizer, session, bool(pooling.get("pooling_mode_cls_token")))
        embedder.embed(["a"])
    except Exception as error:  # tokenizers and onnxruntime raise errors of many kinds
        raise ModelError(f"the embedding model in {folder} can't be run: {error}") from error
    return embedder
