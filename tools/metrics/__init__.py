"""Generate the reference of the server's metrics in docs/metrics.md from the code."""
