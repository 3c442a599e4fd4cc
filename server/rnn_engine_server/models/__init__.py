"""The models that a server serves, and the choice of the model that answers a request."""
