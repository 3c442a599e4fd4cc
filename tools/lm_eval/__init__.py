"""A multiple-choice task for lm-eval with the demo model's held-out items, and a check of its scores by /v1/choices."""
