"""llama-server's own routes."""

from server.routes.llama_server import completion, embedding, rerank, slots

ROUTES = (*completion.ROUTES, *embedding.ROUTES, *slots.ROUTES, *rerank.ROUTES)
