"""Tokenizers for RWKV's World vocabulary, for Hugging Face's tokenizer.json, and for models without a tokenizer."""

from rnn_engine.tokenizer.base import Tokenizer
from rnn_engine.tokenizer.load import NoTokenizer, load_tokenizer

__all__ = ["NoTokenizer", "Tokenizer", "load_tokenizer"]
