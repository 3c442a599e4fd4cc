"""A client that sends a completion or chat request, and times the answer. Imports no other module of the project."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector


@dataclass(slots=True)
class Answer:
    """The answer to a completion or chat request, with its times.

    They are in seconds since the argument `begun` of `ask`.
    """

    asked: float
    status: int = 0
    promises_more: bool = False  # the refusal says when to come again
    moments: list[float] = field(default_factory=list)  # when each piece with text or tokens came
    ended: float = 0.0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)  # if the body asked for them
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None

    @property
    def first(self) -> float:
        """The seconds from the request to the first piece of the answer."""
        return self.moments[0] - self.asked

    @property
    def whole(self) -> float:
        """The seconds from the request to the end of the answer."""
        return self.ended - self.asked

    @property
    def gaps(self) -> list[float]:
        """The seconds between successive pieces of the answer."""
        return [later - earlier for earlier, later in pairwise(self.moments)]

    @property
    def tokens(self) -> int:
        return int(self.usage["completion_tokens"])

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])

    def add(self, event: Mapping[str, Any], now: float) -> None:
        """Add an event of the stream, or the whole body of a response that is not streamed. It arrived at `now`."""
        self.error = self.error or event.get("error")
        self.usage = event.get("usage") or self.usage
        size = len(self.text), len(self.token_ids)
        for choice in event.get("choices", ()):
            self.text += choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
            self.token_ids += choice.get("token_ids") or ()
        if (len(self.text), len(self.token_ids)) != size:
            self.moments.append(now)


async def ask(session: ClientSession, url: str, body: Mapping[str, object], begun: float = 0.0) -> Answer:
    """Send `body` to the route `url`, and return the answer. Its `error` is set if it was rejected or ended early.

    `begun` is the moment of `time.perf_counter` from which the answer's moments count.
    """
    answer = Answer(time.perf_counter() - begun)
    async with session.post(url, json=body) as response:
        answer.status, answer.promises_more = response.status, "Retry-After" in response.headers
        if response.content_type == "text/event-stream":
            async for event in events(response):
                answer.add(event, time.perf_counter() - begun)
        else:
            answer.add(await response.json(), time.perf_counter() - begun)
    answer.ended = time.perf_counter() - begun
    if answer.status != 200 and answer.error is None:
        answer.error = {"message": f"status {answer.status}"}
    return answer


async def events(response: ClientResponse) -> AsyncIterator[Any]:
    """Yield the JSON events of a stream as they arrive.

    If the stream ends without [DONE], the last event is an error.
    """
    async for line in response.content:
        if line == b"data: [DONE]\n":
            return
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))
    yield {"error": {"message": "the stream ended without [DONE]"}}


def patient_session(api_key: str | None = None) -> ClientSession:
    """Return a client session without a timeout and without a limit of connections."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    return ClientSession(headers=headers, connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None))


async def metric(session: ClientSession, url: str, name: str) -> float:
    """Return the value of a metric of the server, summed over its labels.

    Raises ValueError if the server has no such metric.
    """
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    if not values:
        raise ValueError(f"the server has no metric {name}")
    return sum(values)


async def device_of(session: ClientSession, url: str) -> str:
    """Return the name of the device on which the server runs its model."""
    async with session.get(f"{url}/v1/models") as response:
        return str((await response.json())["data"][0]["meta"]["device"])
