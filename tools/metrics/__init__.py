"""Makes the reference of the server's metrics from the code."""
