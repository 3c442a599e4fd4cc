"""Format the parts of answers: choices, log-probabilities, usage and vectors."""
