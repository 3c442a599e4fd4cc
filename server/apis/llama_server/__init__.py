"""The routes of llama-server's API that no other API has."""

from server.apis.llama_server import completion, rerank, slots

ROUTES = (*completion.ROUTES, *slots.ROUTES, *rerank.ROUTES)
