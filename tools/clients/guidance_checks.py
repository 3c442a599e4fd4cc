"""Checks of guidance against the server: programs with parts that the model fills in, over guidance's OpenAI client."""

from __future__ import annotations

from functools import partial
from typing import Any

from guidance import assistant, gen, json, models, user

from tools.clients.questions import MODEL, Checks, Person, answers_france, gives_person


def _ask(url: str, question: str, part: Any) -> str:  # noqa: ANN401
    lm = models.OpenAI(MODEL, base_url=url, api_key="-")
    with user():
        lm += question
    with assistant():
        lm += part
    return str(lm["answer"])


CHECKS: Checks = {
    "`gen`": answers_france(partial(_ask, part=gen("answer", max_tokens=20, temperature=0.0))),
    "`json` of a pydantic model": gives_person(partial(_ask, part=json("answer", schema=Person, temperature=0.0))),
}
