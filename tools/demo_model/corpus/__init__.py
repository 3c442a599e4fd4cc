"""The demo model's corpus: short dialogues, each of a skill. Most skills hold out items from training."""
