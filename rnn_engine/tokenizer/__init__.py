"""Tokenizers: the World vocabulary, Hugging Face's, or none."""

from rnn_engine.tokenizer.base import Tokenizer
from rnn_engine.tokenizer.load import NoTokenizer, load_tokenizer

__all__ = ["NoTokenizer", "Tokenizer", "load_tokenizer"]
