"""Checks of Mistral's package against the server: streams, embeddings and models."""

from typing import Any

from mistralai.client import Mistral

from tools.clients.questions import MODEL, Checks, answers_france


def _client(url: str) -> Any:  # noqa: ANN401
    return Mistral(api_key="-", server_url=url.removesuffix("/v1"))


def _stream(url: str, question: str) -> str:
    events = _client(url).chat.stream(model=MODEL, messages=[{"role": "user", "content": question}])
    return "".join(event.data.choices[0].delta.content or "" for event in events)


CHECKS: Checks = {
    "`chat.stream`": answers_france(_stream),
    "`embeddings.create`": lambda url: len(_client(url).embeddings.create(model=MODEL, inputs=["Hello"]).data),
    "`models.list`": lambda url: _client(url).models.list().data[0].id,
}
