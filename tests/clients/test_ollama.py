"""The official client of Ollama drives the demo model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ollama
import pytest
from pydantic import BaseModel, Field

from tests.clients.conftest import KEY

GREEDY: Mapping[str, Any] = {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0, "num_predict": 60}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."


class City(BaseModel):
    """A city."""

    city: str = Field(max_length=8)


def weather(city: str) -> str:
    """Return the weather in a city.

    Args:
        city: The city.
    """
    return json.dumps({"temperature": 22, "sky": "sunny", "city": city})


@pytest.fixture
def client(url: str) -> Iterator[ollama.Client]:
    client = ollama.Client(host=url, headers={"Authorization": f"Bearer {KEY}"})
    yield client
    client.close()  # type: ignore[no-untyped-call]


def test_chats(client: ollama.Client) -> None:
    whole = client.chat("demo", FRANCE, options=GREEDY, keep_alive="5m")
    assert (whole.message.role, whole.message.content, whole.done_reason) == ("assistant", PARIS, "stop")
    lines = list(client.chat("demo:latest", FRANCE, options=GREEDY, stream=True))
    assert "".join(line.message.content or "" for line in lines) == PARIS
    assert lines[-1].eval_count == whole.eval_count


async def test_the_async_client(url: str) -> None:
    client = ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {KEY}"})
    assert (await client.chat("demo", FRANCE, options=GREEDY)).message.content == PARIS
    lines = [line async for line in await client.generate("demo", "Hi", options={"num_predict": 2}, stream=True)]
    assert lines[-1].done
    await client.close()  # type: ignore[no-untyped-call]


def test_texts(client: ollama.Client) -> None:
    prompt = "User: What is the capital of France?\n\nAssistant:"
    raw = client.generate("demo", prompt, raw=True, options={**GREEDY, "stop": ["\n\n"]})
    assert raw.response == f" {PARIS}"
    assert client.generate("demo", FRANCE[0]["content"], system="", options=GREEDY).response == PARIS
    assert client.generate("demo").done_reason == "load"
    assert client.generate("demo", keep_alive=0).done


def test_a_tool_and_its_result(client: ollama.Client) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked = client.chat("demo", messages, tools=[weather], options=GREEDY).message
    [call] = asked.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Paris"})
    messages += [asked, {"role": "tool", "tool_name": "weather", "content": weather(**call.function.arguments)}]
    assert "22" in (client.chat("demo", messages, tools=[weather], options=GREEDY).message.content or "")


def test_answers_of_json(client: ollama.Client) -> None:
    answer = client.chat("demo", FRANCE, format=City.model_json_schema(), options=GREEDY)
    City.model_validate_json(answer.message.content or "")
    text = client.generate("demo", "Hi", format="json", options=GREEDY).response
    assert text is not None
    assert text.startswith("{")


def test_a_model_without_thoughts_answers_at_once(client: ollama.Client) -> None:
    answer = client.chat("demo", FRANCE, think=True, options={"temperature": 0, "num_predict": 12})
    assert (answer.message.thinking, answer.message.content) == (None, "The capital of France is Paris.")


def test_models(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["demo"]
    assert [model.model for model in client.ps().models] == ["demo"]
    facts = client.show("demo")
    assert facts.modelinfo is not None
    assert facts.capabilities is not None
    assert "completion" in facts.capabilities


def test_vectors(client: ollama.Client) -> None:
    vectors = client.embed("demo", ["One", "Two"], truncate=True, keep_alive="5m").embeddings
    assert len(vectors) == 2
    assert client.embeddings("demo", "Two").embedding == pytest.approx(vectors[1], abs=1e-6)
    assert len(client.embed("demo", "One", dimensions=8).embeddings[0]) == 8


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.push("other"),
        lambda client: client.create("other", from_="demo"),
        lambda client: client.copy("demo", "other"),
        lambda client: client.delete("demo"),
    ],
)
def test_models_are_not_changed(client: ollama.Client, ask: Callable[[ollama.Client], object]) -> None:
    with pytest.raises(ollama.ResponseError, match="rnn-engine") as refused:
        ask(client)
    assert refused.value.status_code == 501


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_without_a_folder_of_models_fetches_none(client: ollama.Client, stream: bool) -> None:
    with pytest.raises(ollama.ResponseError, match="--model-folder") as refused:
        list(client.pull("other", stream=True)) if stream else client.pull("other")
    assert refused.value.status_code == 404


def test_errors_are_the_clients_own(client: ollama.Client, url: str) -> None:
    nobody = ollama.Client(host=url)
    with pytest.raises(ollama.ResponseError) as unknown:
        nobody.list()
    assert unknown.value.status_code == 401
    nobody.close()  # type: ignore[no-untyped-call]
