"""The plumbing of HTTP: settings, routes, middleware, bodies, errors and event streams."""
