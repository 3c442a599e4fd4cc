"""The HTTP calls of one operation, each with the statuses that are allowed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from aiohttp import ClientResponse, ClientSession

Body: TypeAlias = Mapping[str, object]

OK = (200,)
_SHOWN = 400  # characters of an answer that an error shows
_TEXT = (
    "one two three four five six seven eight nine ten red green blue yellow black white cat dog horse bird fish tree "
    "house river name city big small old new first last sun moon day night what who where when why how is are was the a"
)
_WORDS = _TEXT.split()


class SurpriseError(Exception):
    """The server did something unexpected."""


class RefusedError(SurpriseError):
    """The server answered with a status that is not allowed."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable  # the answer says when to retry


@dataclass(frozen=True, slots=True)
class Caller:
    """A client for one operation. It has its own `random`, so that the operation depends only on its number."""

    session: ClientSession
    url: str
    random: Random
    number: int

    async def call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        data: bytes | None = None,
        status: Collection[int] = OK,
    ) -> Any:  # noqa: ANN401
        """Send a request. Return the JSON of the answer, or its bytes if it is a file.

        Raises RefusedError for a status that is not in `status`.
        """
        async with self.session.request(method, self.url + path, json=body, data=data) as response:
            await expect(response, status)
            return await response.json() if response.content_type == "application/json" else await response.read()

    @asynccontextmanager
    async def stream(self, path: str, body: Body) -> AsyncIterator[ClientResponse]:
        """Open a stream. If the block does not read it to its end, the connection is closed."""
        async with self.session.post(self.url + path, json={**body, "stream": True}) as response:
            await expect(response, OK)
            yield response

    def text(self, words: int) -> str:
        return " ".join(self.random.choice(_WORDS) for _ in range(words))


async def expect(response: ClientResponse, status: Collection[int]) -> None:
    """Raise RefusedError if the answer has another status than those in `status`."""
    if response.status not in status:
        text = (await response.text(errors="replace"))[:_SHOWN]
        message = f"{response.method} {response.url.path}: {response.status}, not {list(status)}: {text}"
        raise RefusedError(message, retryable=response.status == 503 and "Retry-After" in response.headers)


def expect_that(held: bool, what: str) -> None:
    """Raise SurpriseError unless `held`."""
    if not held:
        raise SurpriseError(what[:_SHOWN])


async def events(response: ClientResponse) -> AsyncIterator[Any]:
    """Yield the events of a stream as they come. Raises SurpriseError for an error event or a missing [DONE]."""
    async for line in response.content:
        if line == b"data: [DONE]\n":
            return
        if line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            expect_that("error" not in event, f"{response.url.path}: error event {event}")
            yield event
    raise SurpriseError(f"{response.url.path}: the stream ended without [DONE]")
