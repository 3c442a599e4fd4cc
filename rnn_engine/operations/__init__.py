"""Operations on an engine beyond one generation: parallel requests, scoring, named states, embeddings.

Each is a module of functions over `EngineLike`, so they work for an engine in this process or elsewhere.
"""
