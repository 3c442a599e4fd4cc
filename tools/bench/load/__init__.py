"""A load of chats over HTTP: the clients' waiting times, and the server's tokens a second."""
