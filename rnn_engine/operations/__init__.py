"""What clients do with an engine beyond one generation: many at once, scoring of choices, states by name, embeddings.

Each task is a module of plain functions over `EngineLike`. Knows neither HTTP nor how an engine works.
"""
