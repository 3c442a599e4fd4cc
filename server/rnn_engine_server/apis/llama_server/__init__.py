"""The routes of llama-server's API that no other API has."""

from rnn_engine_server.apis.llama_server import completion, slots

ROUTES = (*completion.ROUTES, *slots.ROUTES)
