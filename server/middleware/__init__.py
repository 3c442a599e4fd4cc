"""What every request passes before its handler: telemetry, errors, origins, API key, count of running requests."""
