"""llama-server's own routes."""

from server.routes.llama_server import completion, embedding, rerank, slot_actions, slots

ROUTES = (*completion.ROUTES, *embedding.ROUTES, *slots.ROUTES, *slot_actions.ROUTES, *rerank.ROUTES)
