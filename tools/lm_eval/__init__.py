"""A multiple-choice task for lm-eval with the demo model's held-out items. Its scores are compared with /v1/choices."""
