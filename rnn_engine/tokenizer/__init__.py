"""Tokenizers: the World vocabulary, Hugging Face's, or none."""

from rnn_engine.tokenizer.base import Tokenizer
from rnn_engine.tokenizer.load import load_tokenizer
from rnn_engine.tokenizer.none import NoTokenizer

__all__ = ["NoTokenizer", "Tokenizer", "load_tokenizer"]
