"""The Python API: `LLM` and its twin `AsyncLLM` for text, `Model` for logits, and `State`."""
