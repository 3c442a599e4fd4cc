"""The corpus of the demo model: a generator of short dialogues, each skill with items that training never sees."""
