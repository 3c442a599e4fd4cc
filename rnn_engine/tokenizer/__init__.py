"""Tokenizers for RWKV's World vocabulary, a Hugging Face tokenizer.json, a GGUF file's vocabulary, or none at all."""

from rnn_engine.tokenizer.load import NoTokenizer, load_tokenizer
from rnn_engine.types import Tokenizer

__all__ = ["NoTokenizer", "Tokenizer", "load_tokenizer"]
