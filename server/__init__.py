"""The HTTP side of rnn-engine: an OpenAI-compatible API over any `EngineLike`."""
