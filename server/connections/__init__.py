"""Connections of clients: how many there may be, how long they may take, and when they are closed."""
