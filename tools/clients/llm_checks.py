"""Checks of the command `llm` against the server, as an OpenAI-compatible model: a stream, a schema and tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.clients.questions import MODEL, Ask, Checks, Person, answers_france, answers_weather, gives_person

_WEATHER = """
def weather(city: str) -> str:
    "Return the weather in a city."
    return '{"temperature": 22, "sky": "sunny", "city": "' + city + '"}'
"""


def _ask(url: str, question: str, *options: str) -> str:
    served = {
        "model_id": "served",
        "model_name": MODEL,
        "api_base": url,
        "supports_schema": True,
        "supports_tools": True,
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps([served]))  # JSON is YAML
        return subprocess.run(
            [sys.executable, "-m", "llm", "prompt", "-m", "served", "-o", "temperature", "0", question, *options],
            env={**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "-"},
            capture_output=True,
            text=True,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout


def _with(*options: str) -> Ask:
    return lambda url, question: _ask(url, question, *options)


CHECKS: Checks = {
    "a stream": answers_france(_ask),
    "`--no-stream`": answers_france(_with("--no-stream")),
    "`--schema`": gives_person(_with("--schema", json.dumps(Person.model_json_schema()))),
    "`--functions`": answers_weather(_with("--functions", _WEATHER)),
}
