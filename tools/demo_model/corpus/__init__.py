"""The corpus of the demo model: a generator of short dialogues. Most skills have items that training never sees."""
