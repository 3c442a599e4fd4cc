"""Checks of google-adk against the server, by its `LiteLlm`: an agent with a tool, over two questions of a session."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it is fetched
from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner

from tools.clients.questions import FRANCE_QUESTION, GREEDY, MODEL, Checks, answers_weather, weather


def _weather(city: str) -> dict[str, Any]:
    """Return the weather in a city."""
    found: dict[str, Any] = json.loads(weather(city))
    return found


def _run(url: str, question: str) -> str:
    model = LiteLlm(f"openai/{MODEL}", api_base=url, api_key="-", **GREEDY)
    runner = InMemoryRunner(LlmAgent(name="agent", model=model, tools=[_weather]))
    events = asyncio.run(runner.run_debug([FRANCE_QUESTION, question], quiet=True))
    texts = [part.text for event in events if event.content for part in event.content.parts if part.text]
    assert "Paris" in texts[0], texts
    return str(texts[-1])


CHECKS: Checks = {"`LlmAgent` with a tool": answers_weather(_run)}
