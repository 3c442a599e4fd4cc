"""What all APIs of the server share: the application, routing, bodies, errors, settings and streams."""
