"""A client for the HTTP calls of one test operation. It checks each response's status."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias
from urllib.parse import quote

from aiohttp import ClientResponse, ClientSession

Body: TypeAlias = Mapping[str, object]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
OK = (200,)
_SHOWN = 400  # characters of an answer that an error shows
_TEXT = (
    "what who where when why how is are was the a an one two three four five red green blue cat dog horse bird tree "
    "house river city name big small old new first last sun moon day night of in on with and or but not please tell me"
)
_WORDS = _TEXT.split()


def some_words(random: Random, count: int) -> str:
    """Return a random text of words, each of which is about one token."""
    return " ".join(random.choices(_WORDS, k=count))


class SurpriseError(Exception):
    """The server answered in an unexpected way."""


class RefusedError(SurpriseError):
    """The server answered with a status that the call does not allow."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable  # the answer says when to retry


@dataclass(frozen=True, slots=True)
class Caller:
    """A client for the calls of one operation, which depends only on its own `random` and `number`."""

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
        """Return the response to a request: its JSON, or a file's bytes. Raises RefusedError for another `status`."""
        async with self.session.request(method, self.url + path, json=body, data=data) as response:
            await expect(response, status)
            return await response.json() if response.content_type == "application/json" else await response.read()

    def text(self, words: int) -> str:
        return some_words(self.random, words)


def state_path(name: str) -> str:
    """Return the URL path of a named state."""
    return f"/v1/states/{quote(name)}"


async def expect(response: ClientResponse, status: Collection[int]) -> None:
    """Raise RefusedError if the response has a status that is not in `status`."""
    if response.status not in status:
        text = (await response.text(errors="replace"))[:_SHOWN]
        message = f"{response.method} {response.url.path}: {response.status}, not {list(status)}: {text}"
        raise RefusedError(message, retryable=response.status == 503 and "Retry-After" in response.headers)


def expect_that(held: bool, what: str) -> None:
    """Raise SurpriseError if `held` is False."""
    if not held:
        raise SurpriseError(what[:_SHOWN])


@dataclass
class KnownAnswers:
    """Prompts whose greedy answers must stay the same. A different answer means that a stored state is damaged."""

    prompts: int
    known: dict[int, str] = field(default_factory=dict)
    asked: int = 0
    cached: int = 0  # of those asked, how many began with a kept state

    async def ask(self, caller: Caller) -> None:
        """Send a random one of the prompts. Raises SurpriseError if the answer differs from the first answer to it."""
        number = caller.random.randrange(self.prompts)
        prompt = f"User: Tell me about {number} cats and {number + 1} dogs.\n\nAssistant:"
        answer = await caller.call("POST", TEXT, {"prompt": prompt, "temperature": 0, "max_tokens": 8})
        text = answer["choices"][0]["text"]
        known = self.known.setdefault(number, text)
        self.asked += 1
        self.cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        expect_that(text == known, f"prompt {number}: the answer was {known!r} and is {text!r}")
