"""Checks of NeMo Guardrails against the server: an answer, a stream, and a rail on the input that the model judges."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from nemoguardrails import LLMRails, RailsConfig

from tools.clients.questions import MODEL, Checks, answers_france


def _rails(url: str) -> LLMRails:
    model = {"type": "main", "engine": "openai", "model": MODEL}
    parameters = {"base_url": url, "api_key": "-", "temperature": 0}
    return LLMRails(
        RailsConfig.from_content(yaml_content=json.dumps({"models": [{**model, "parameters": parameters}]}))
    )


def _ask(url: str, question: str) -> Any:  # noqa: ANN401
    return _rails(url).generate(messages=[{"role": "user", "content": question}])["content"]


def _stream(url: str, question: str) -> str:
    async def run() -> str:
        parts = _rails(url).stream_async(messages=[{"role": "user", "content": question}])
        return "".join([str(part) async for part in parts])

    return asyncio.run(run())


CHECKS: Checks = {"`generate`": answers_france(_ask), "`stream_async`": answers_france(_stream)}
