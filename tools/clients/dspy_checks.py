"""Checks of dspy against the server: its clients for chats and responses, and a JSON schema.

Signatures are not checked, since they test the model.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it is downloaded
import dspy

from tools.clients.questions import MODEL, Checks, answers_france, gives_person, person_format


def _ask(url: str, question: str, model_type: str = "chat", **fields: Any) -> str:  # noqa: ANN401
    lm = dspy.LM(f"openai/{MODEL}", api_base=url, api_key="-", model_type=model_type, temperature=0, cache=False)
    (answer,) = lm(question, **fields)
    return str(answer if isinstance(answer, str) else answer["text"])


CHECKS: Checks = {
    **{f"`LM`, {kind}": answers_france(partial(_ask, model_type=kind)) for kind in ("chat", "responses")},
    "`response_format`": gives_person(partial(_ask, response_format=person_format())),
}
