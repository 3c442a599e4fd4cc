"""The parts of the server that all APIs share: the application, routing, bodies, errors, settings and streams."""
