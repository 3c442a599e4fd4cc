"""Operations made of several engine requests: parallel requests, scoring, named states, embeddings and chat prompts.

Each module has functions over `EngineLike`, so they work with an engine in this process or elsewhere.
"""
