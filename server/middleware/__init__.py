"""What every request passes before its handler: errors, origins, the API key, and the count of running requests."""
