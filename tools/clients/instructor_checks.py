"""instructor: the modes that send the schema of a pydantic model to the server.

`Mode.JSON` and `Mode.MD_JSON` only put it into the prompt, so they test the model and are not tried.
"""

from __future__ import annotations

from functools import partial

import instructor
from openai import OpenAI

from tools.clients.questions import GREEDY, MODEL, PERSON_QUESTION, Checks, Person

_MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS")


def _create(url: str, mode: str) -> Person:
    client = instructor.from_openai(OpenAI(base_url=url, api_key="-"), mode=instructor.Mode[mode])
    person = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PERSON_QUESTION}],
        response_model=Person,
        max_retries=0,
        **({"temperature": 0} if mode == "RESPONSES_TOOLS" else GREEDY),
    )
    assert isinstance(person, Person)
    return person


CHECKS: Checks = {f"`Mode.{mode}`": partial(_create, mode=mode) for mode in _MODES}
