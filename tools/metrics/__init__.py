"""The reference of the server's metrics, made from the code."""
