"""A multiple-choice task for lm-eval of the demo model's held-out items, and what holds its scores to /v1/choices."""
