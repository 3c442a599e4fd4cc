"""What becomes of requests and named states when parts of a fleet die: replicas, the shared store, the network."""
