"""Checks of instructor against the server: the modes that send the schema of a pydantic model.

`Mode.JSON` and `Mode.MD_JSON` only put it into the prompt, so they test the model and are not tried.
"""

from __future__ import annotations

from functools import partial

import instructor
from openai import OpenAI

from tools.clients.questions import GREEDY, MODEL, Checks, Person, gives_person

_MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS")


def _ask(url: str, question: str, mode: str) -> object:
    client = instructor.from_openai(OpenAI(base_url=url, api_key="-"), mode=instructor.Mode[mode])
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        response_model=Person,
        max_retries=0,
        **({"temperature": 0} if mode == "RESPONSES_TOOLS" else GREEDY),
    )


CHECKS: Checks = {f"`Mode.{mode}`": gives_person(partial(_ask, mode=mode)) for mode in _MODES}
