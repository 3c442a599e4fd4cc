"""Checks of inspect-ai against the server: an evaluation whose samples need a plain answer and a tool's result."""

from __future__ import annotations

import tempfile
from functools import partial

import inspect_ai
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool

from tools.clients.questions import FRANCE_QUESTION, MODEL, WEATHER_QUESTION, Checks
from tools.clients.questions import weather as result


@tool  # type: ignore[untyped-decorator]
def weather() -> Tool:
    async def execute(city: str) -> str:
        """Return the weather in a city.

        Args:
            city: The city.
        """
        return result(city)

    return execute


def _accuracy(url: str, provider: str) -> str:
    samples = [Sample(FRANCE_QUESTION, target="Paris"), Sample(WEATHER_QUESTION, target="22")]
    solver = [use_tools(weather()), generate()]
    task = inspect_ai.Task(samples, solver=solver, scorer=includes(), config=GenerateConfig(temperature=0))
    model = get_model(f"{provider}/{MODEL}", base_url=url, api_key="-", memoize=False)
    with tempfile.TemporaryDirectory() as folder:
        [log] = inspect_ai.eval(task, model, log_dir=folder, display="none")
        assert log.results.scores[0].metrics["accuracy"].value == 1, log
        return str(log.samples[-1].output.completion)


CHECKS: Checks = {f"`eval`, `{each}/`": partial(_accuracy, provider=each) for each in ("openai", "openai-api/served")}
