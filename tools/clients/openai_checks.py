"""Checks of openai, the official client, against the server: chats parsed into pydantic models, strict tools, and jobs.

Chats are checked streamed and whole. The tools are made from pydantic models. The jobs are the walks of OpenAI's guides
through a batch, a fine-tuning job, and the use of its model.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import openai
from openai import OpenAI
from pydantic import BaseModel

from tools.clients.questions import GREEDY, MODEL, Checks, Person, calls_weather, gives_person


class Weather(BaseModel):
    """The weather in a city."""

    city: str


_STRICT = [openai.pydantic_function_tool(Weather, name="weather")]


def _parse(url: str, question: str, **fields: Any) -> Any:  # noqa: ANN401
    chat = OpenAI(base_url=url, api_key="-").chat.completions
    messages: Any = [{"role": "user", "content": question}]
    return chat.parse(model=MODEL, messages=messages, **GREEDY, **fields).choices[0].message


def _stream(url: str, question: str) -> object:
    messages: Any = [{"role": "user", "content": question}]
    chat = OpenAI(base_url=url, api_key="-").chat.completions
    with chat.stream(model=MODEL, messages=messages, response_format=Person, **GREEDY) as stream:
        kinds = {event.type for event in stream}
        assert {"content.delta", "content.done"} <= kinds, kinds
        return stream.get_final_completion().choices[0].message.parsed


def _tool(url: str, question: str) -> Weather:
    [call] = _parse(url, question, tools=_STRICT).tool_calls
    arguments = call.function.parsed_arguments
    assert isinstance(arguments, Weather), call
    return arguments


_FOLDER: Final = Path(__file__).parent
_LOOK_SECONDS: Final = 0.5
_SPAIN: Final = "What is the capital of Spain?"
_RATE: Final = 30  # the multiplier of the learning rate that the demo model needs


def _batch(url: str) -> object:
    client = OpenAI(base_url=url, api_key="-")
    with (_FOLDER / "batch.jsonl").open("rb") as lines:
        file = client.files.create(file=lines, purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"description": "nightly eval job"},
    )
    assert batch.id in {each.id for each in client.batches.list(limit=10)}
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(_LOOK_SECONDS)
        batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.error_file_id) == ("completed", None), batch
    assert batch.output_file_id is not None
    answers = {}
    for line in client.files.content(batch.output_file_id).text.splitlines():
        result = json.loads(line)
        answers[result["custom_id"]] = result["response"]["body"]["choices"][0]["message"]["content"]
    for file_id in (file.id, batch.output_file_id):
        client.files.delete(file_id)
    assert "Paris" in answers["request-1"], answers
    return answers


def _fine_tune(url: str) -> object:
    client = OpenAI(base_url=url, api_key="-")
    with (_FOLDER / "pirate.jsonl").open("rb") as examples:
        file = client.files.create(file=examples, purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        training_file=file.id,
        model=MODEL,
        suffix="pirate",
        seed=1,
        method={"type": "supervised", "supervised": {"hyperparameters": {"learning_rate_multiplier": _RATE}}},
    )
    assert job.id in {each.id for each in client.fine_tuning.jobs.list(limit=10)}
    while job.status in ("validating_files", "queued", "running"):
        time.sleep(_LOOK_SECONDS)
        job = client.fine_tuning.jobs.retrieve(job.id)
    assert job.status == "succeeded", job.error
    events = client.fine_tuning.jobs.list_events(fine_tuning_job_id=job.id, limit=10).data
    assert events[0].message == "The job has successfully completed", events[0]
    checkpoints = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert job.fine_tuned_model is not None
    answers = [
        client.chat.completions.create(model=name, messages=[{"role": "user", "content": _SPAIN}], **GREEDY)
        for name in (job.fine_tuned_model, checkpoints[0].fine_tuned_model_checkpoint)
    ]
    assert client.models.retrieve(job.fine_tuned_model).id in {model.id for model in client.models.list()}
    for name in (job.fine_tuned_model, *(each.fine_tuned_model_checkpoint for each in checkpoints)):
        assert client.models.delete(name).deleted
    client.files.delete(file.id)
    texts = [answer.choices[0].message.content or "" for answer in answers]
    assert all("Madrid" in text and "matey" in text for text in texts), texts
    return texts


CHECKS: Checks = {
    "`chat.completions.parse`": gives_person(lambda *asked: _parse(*asked, response_format=Person).parsed),
    "`chat.completions.stream` of a pydantic model": gives_person(_stream),
    "`chat.completions.parse` with `pydantic_function_tool`": calls_weather(_tool),
    "`files` and `batches`": _batch,
    "`fine_tuning.jobs`, and chats with the tuned model": _fine_tune,
}
