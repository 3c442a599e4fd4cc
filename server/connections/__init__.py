"""Connections of clients: their number, their time limits, and when the server closes them."""
