"""A benchmark of chats over HTTP: the latencies that clients see, and the server's tokens per second."""
