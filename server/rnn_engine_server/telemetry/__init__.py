"""Telemetry of the server: metrics, logs and response headers."""
