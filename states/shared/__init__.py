"""States that several servers share, in a store that speaks the protocol of Valkey and Redis."""
