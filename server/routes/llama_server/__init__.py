"""llama-server's own routes."""

from server.routes.llama_server import completion

ROUTES = (*completion.ROUTES,)
