"""llm, the command line: an OpenAI-compatible model in its configuration, with a stream, a schema and tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.clients.questions import MODEL, PERSON_QUESTION, WEATHER_QUESTION, Checks, Person

_WEATHER = """
def weather(city: str) -> str:
    "Return the weather in a city."
    return '{"temperature": 22, "sky": "sunny", "city": "' + city + '"}'
"""


def _run(url: str, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            {
                "model_id": "served",
                "model_name": MODEL,
                "api_base": url,
                "supports_schema": True,
                "supports_tools": True,
            }
        ]
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps(settings))  # JSON is YAML
        return subprocess.run(
            [sys.executable, "-m", "llm", "prompt", "-m", "served", "-o", "temperature", "0", *arguments],
            env={**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "-"},
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout


def _text(url: str, *options: str) -> str:
    answer = _run(url, "What is the capital of France?", *options)
    assert "Paris" in answer, answer
    return answer


def _schema(url: str) -> Person:
    return Person.model_validate_json(_run(url, PERSON_QUESTION, "--schema", json.dumps(Person.model_json_schema())))


def _tools(url: str) -> str:
    answer = _run(url, WEATHER_QUESTION, "--functions", _WEATHER)
    assert "22" in answer, answer
    return answer


CHECKS: Checks = {
    "a stream": _text,
    "`--no-stream`": lambda url: _text(url, "--no-stream"),
    "`--schema`": _schema,
    "`--functions`": _tools,
}
