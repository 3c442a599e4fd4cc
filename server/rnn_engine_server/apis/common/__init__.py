"""The parts that several APIs share: request fields, running an HTTP request's engine requests, and answering it."""
