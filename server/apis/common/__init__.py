"""What several APIs share: request fields, running the engine requests of an HTTP request, and answering it."""
