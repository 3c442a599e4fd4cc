"""The HTTP side of rnn-engine: an OpenAI-compatible API over any `EngineLike`.

Knows requests, events and text; knows neither models nor GPUs.
"""
