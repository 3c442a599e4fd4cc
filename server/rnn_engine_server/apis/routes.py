"""The list of all routes of the server, API by API."""

from __future__ import annotations

from rnn_engine_server import web
from rnn_engine_server.apis import ai00, cohere, koboldcpp, llama_server, rerank, rwkv_runner, tei, tgi, vllm
from rnn_engine_server.apis.anthropic import routes as anthropic
from rnn_engine_server.apis.engine import cache, choices, collections, states, status, tokens
from rnn_engine_server.apis.ollama import routes as ollama
from rnn_engine_server.apis.openai import (
    batches,
    chat,
    completions,
    conversations,
    embeddings,
    files,
    fine_tuning,
    models,
    responses,
)
from rnn_engine_server.core.routing import Route
from rnn_engine_server.openapi import document

ALL_ROUTES: tuple[Route, ...] = (
    *chat.ROUTES,
    *completions.ROUTES,
    *responses.ROUTES,
    *conversations.ROUTES,
    *embeddings.ROUTES,
    *files.ROUTES,
    *batches.ROUTES,
    *fine_tuning.ROUTES,
    *models.ROUTES,
    *choices.ROUTES,
    *tokens.ROUTES,
    *states.ROUTES,
    *collections.ROUTES,
    *cache.ROUTES,
    *status.ROUTES,
    *anthropic.ROUTES,
    *ollama.ROUTES,
    *ollama.LIBRARY_ROUTES,
    *llama_server.ROUTES,
    *rerank.ROUTES,
    *cohere.ROUTES,
    *tgi.ROUTES,
    *tei.ROUTES,
    *vllm.ROUTES,
    *koboldcpp.ROUTES,
    *rwkv_runner.ROUTES,
    *ai00.ROUTES,
    *document.ROUTES,
    *web.ROUTES,
)
"""OpenAI's routes first, then this project's own, then those of other APIs: the order in which they are listed."""
