"""Telemetry of the server: metrics, log, headers, traces."""
