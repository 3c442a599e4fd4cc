"""The demo model's corpus: a generator of short dialogues, each of a skill.

Most skills hold out items from training.
"""
