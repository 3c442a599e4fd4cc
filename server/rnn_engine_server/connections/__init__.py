"""Connections of clients: how many there may be, their time limits, and when the server closes them."""
