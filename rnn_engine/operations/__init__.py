"""Operations made of several engine requests, over `EngineLike`, with an engine in this process or elsewhere."""
