"""dspy: its client of chats and of responses, and a JSON schema. Signatures are not tried: they test the model."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it is downloaded
import dspy

from tools.clients.questions import MODEL, PERSON_QUESTION, Checks, Person, person_format


def _ask(url: str, question: str, model_type: str = "chat", **fields: Any) -> str:  # noqa: ANN401
    lm = dspy.LM(f"openai/{MODEL}", api_base=url, api_key="-", model_type=model_type, temperature=0, cache=False)
    (answer,) = lm(question, **fields)
    return str(answer if isinstance(answer, str) else answer["text"])


def _text(url: str, model_type: str) -> str:
    answer = _ask(url, "What is the capital of France?", model_type)
    assert "Paris" in answer, answer
    return answer


def _schema(url: str) -> Person:
    return Person.model_validate_json(_ask(url, PERSON_QUESTION, response_format=person_format()))


CHECKS: Checks = {
    **{f"`LM`, {kind}": partial(_text, model_type=kind) for kind in ("chat", "responses")},
    "`response_format`": _schema,
}
