"""Telemetry of the server: metrics, logs, response headers and traces."""
