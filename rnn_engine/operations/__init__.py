"""Operations on an engine beyond one generation: parallel requests, scoring, named states, embeddings.

Each module has functions over `EngineLike`, so they work with an engine in this process or elsewhere.
"""
