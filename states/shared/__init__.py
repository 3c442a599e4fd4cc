"""States that several servers share, in a store with the protocol of Valkey and Redis."""
