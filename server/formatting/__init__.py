"""What answers look like: choices, log-probabilities, usage and vectors."""
