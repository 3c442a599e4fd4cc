"""llama-server's own routes."""

from server.apis.llama_server import completion, rerank, slots

ROUTES = (*completion.ROUTES, *slots.ROUTES, *rerank.ROUTES)
