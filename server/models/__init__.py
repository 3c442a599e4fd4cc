"""The models of a server, and the choice of the one that answers a request."""
