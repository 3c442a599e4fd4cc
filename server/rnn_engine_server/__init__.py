"""The HTTP server of rnn-engine: OpenAI's and other APIs over any engine with the interface `EngineLike`."""
