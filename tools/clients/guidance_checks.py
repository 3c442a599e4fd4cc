"""guidance: programs with parts that the model fills in, over its OpenAI client."""

from __future__ import annotations

from guidance import assistant, gen, json, models, user

from tools.clients.questions import MODEL, PERSON_QUESTION, Checks, Person


def _text(url: str) -> str:
    lm = models.OpenAI(MODEL, base_url=url, api_key="-")
    with user():
        lm += "What is the capital of France?"
    with assistant():
        lm += gen("answer", max_tokens=20, temperature=0.0)
    answer = str(lm["answer"])
    assert "Paris" in answer, answer
    return answer


def _json(url: str) -> Person:
    lm = models.OpenAI(MODEL, base_url=url, api_key="-")
    with user():
        lm += PERSON_QUESTION
    with assistant():
        lm += json("person", schema=Person, temperature=0.0)
    return Person.model_validate_json(lm["person"])


CHECKS: Checks = {"`gen`": _text, "`json` of a pydantic model": _json}
