"""A load of chats over HTTP: what a client waits for, and how many tokens a server makes."""
