"""Quotas: the requests and tokens that a key, or an address, may use in a minute."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import openai
import pytest

from rnn_engine.errors import InvalidRequestError, OverloadedError, RateLimitError
from rnn_engine.requests import Event, Finished, GenerateRequest, Started, TextDelta, TokenInfo
from rnn_engine_server.auth.engine import RATE_LIMITER
from rnn_engine_server.auth.keys import ApiKey, Rate, parse_rate
from rnn_engine_server.auth.quotas import RateLimiter, Spending
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve, error_of

REQUEST: Body = {"prompt": "abcd", "max_tokens": 6}


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def spend(quotas: RateLimiter, rate: Rate, client: str = "a") -> Spending:
    return Spending(quotas, client, rate)


def begin(quotas: RateLimiter, rate: Rate, count: int, client: str = "a") -> int:
    """Return how many of `count` requests are accepted."""
    for number in range(count):
        try:
            spend(quotas, rate, client).begin()
        except RateLimitError:
            return number
    return count


async def answer(prompt: int, tokens: int, *, ends: bool = True) -> AsyncGenerator[Event, None]:
    yield Started(prompt, 0)
    yield TextDelta("", (TokenInfo(1, b"", None),) * tokens)
    if ends:
        yield Finished("stop", tokens, 0)


async def follow(spending: Spending, prompt: int, most: int, tokens: int, *, has_begun: bool = False) -> None:
    request = GenerateRequest([1] * prompt, max_tokens=most)
    async for _ in spending.follow(request, answer(prompt, tokens), has_begun=has_begun):
        pass


def test_quota_of_requests_is_refilled_all_the_time() -> None:
    quotas, rate = RateLimiter(clock=(clock := Clock())), Rate(requests=6)
    assert begin(quotas, rate, 10) == 6
    with pytest.raises(RateLimitError, match="'a' may use 6 requests a minute and has 0 left") as refusal:
        spend(quotas, rate).begin()
    assert refusal.value.retry_after == pytest.approx(10.0)
    clock.now += refusal.value.retry_after
    assert begin(quotas, rate, 10) == 1
    clock.now += 3600.0
    assert begin(quotas, rate, 10) == 6
    assert begin(quotas, rate, 10, client="b") == 6


def test_request_is_counted_once_however_often_it_asks_the_engine() -> None:
    quotas, rate = RateLimiter(clock=Clock()), Rate(requests=2)
    spending = spend(quotas, rate)
    for _ in range(5):
        spending.begin()
    assert spending.headers["x-ratelimit-remaining-requests"] == "1"


async def test_tokens_are_taken_at_the_start_and_those_not_used_given_back() -> None:
    quotas, rate = RateLimiter(clock=Clock()), Rate(tokens=100)
    spending = spend(quotas, rate)
    events = spending.follow(GenerateRequest([1] * 10, max_tokens=50), answer(10, 5), has_begun=False)
    await anext(events)
    assert spending.headers["x-ratelimit-remaining-tokens"] == "40"
    with pytest.raises(RateLimitError, match="100 tokens a minute and has 40 left; this takes 41") as refusal:
        await follow(spend(quotas, rate), 1, 40, 1)
    assert refusal.value.what == "tokens"
    assert refusal.value.retry_after == pytest.approx(0.6)
    await follow(spend(quotas, rate), 1, 39, 1)
    async for _ in events:
        pass
    assert spending.headers["x-ratelimit-remaining-tokens"] == str(100 - 15 - 2)


async def test_reader_that_leaves_pays_for_what_was_run() -> None:
    quotas, rate = RateLimiter(clock=Clock()), Rate(tokens=100)
    spending = spend(quotas, rate)
    events = spending.follow(GenerateRequest([1] * 10, max_tokens=50), answer(10, 5, ends=False), has_begun=False)
    await anext(events)
    await anext(events)
    await events.aclose()
    assert spending.headers["x-ratelimit-remaining-tokens"] == "85"


async def test_request_that_the_engine_refuses_costs_no_tokens() -> None:
    async def refused() -> AsyncGenerator[Event, None]:
        for event in (Started(0, 0), TextDelta("", ())):
            if isinstance(event, Started):
                raise OverloadedError("full", 1.0)
            yield event

    quotas, rate = RateLimiter(clock=Clock()), Rate(tokens=100)
    spending = spend(quotas, rate)
    with pytest.raises(OverloadedError, match="full"):
        async for _ in spending.follow(GenerateRequest([1], max_tokens=50), refused(), has_begun=False):
            pass
    assert spending.headers["x-ratelimit-remaining-tokens"] == "100"


async def test_call_that_has_begun_is_answered_whole_and_owes_the_rest() -> None:
    quotas, rate = RateLimiter(clock=(clock := Clock())), Rate(tokens=60)
    spending = spend(quotas, rate)
    for _ in range(3):
        await follow(spending, 10, 30, 30, has_begun=True)
    assert spending.headers["x-ratelimit-remaining-tokens"] == "0"
    assert spending.headers["x-ratelimit-reset-tokens"] == "2m0s"
    clock.now += 60.0
    with pytest.raises(RateLimitError):
        spend(quotas, rate).begin()
    clock.now += 2.0
    spend(quotas, rate).begin()


async def test_request_of_more_than_a_quota_ever_has_is_wrong() -> None:
    with pytest.raises(InvalidRequestError, match=r"max_tokens: 101 is not allowed; expected .* at most 100 together"):
        await follow(spend(RateLimiter(clock=Clock()), Rate(tokens=100)), 1, 100, 1)


def test_quotas_of_clients_that_rest_are_forgotten() -> None:
    quotas, rate = RateLimiter(clock=(clock := Clock())), Rate(requests=6)
    for number in range(100):
        spend(quotas, rate, str(number)).begin()
    clock.now += 61.0
    spend(quotas, rate).begin()
    assert len(quotas) == 1


@pytest.mark.parametrize(
    ("text", "rate"),
    [("requests=60", Rate(requests=60)), ("tokens=1", Rate(tokens=1)), ("tokens=100000,requests=60", Rate(60, 100000))],
)
def test_rates_are_read_as_they_are_written(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate
    assert parse_rate(",".join(rate.words)) == rate


@pytest.mark.parametrize(
    "text",
    [
        *("", "60", "requests", "requests=", "requests=0", "requests=-1", "requests=1.5", "requests=\u0663"),
        *("request=5", "requests=5,requests=6", "requests=5,", "tokens=9999999999999", "requests = 5"),
    ],
)
def test_rates_that_are_none_are_named(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"rate: .* is not allowed; expected requests=NUMBER"):
        parse_rate(text)


@pytest.fixture
async def client(serve: Serve) -> Client:
    keys = (ApiKey.of("key-a", "a"), ApiKey.of("key-b", "b", rate=Rate(requests=100)))
    auth = AuthSettings(keys, rate=Rate(requests=3, tokens=25))
    client = await serve(FakeEngine(lambda _: "yes"), ServerSettings(auth=auth))
    client.app[RATE_LIMITER].clock = Clock()
    return client


def of(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer key-{key}"}


async def test_answers_tell_what_is_left_and_the_spent_quota_is_refused_as_openai_does(client: Client) -> None:
    response = await client.post("/v1/completions", json=REQUEST, headers=of("a"))
    assert response.status == 200
    assert {name.lower(): value for name, value in response.headers.items() if "ratelimit" in name.lower()} == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "20s",
        "x-ratelimit-limit-tokens": "25",
        "x-ratelimit-remaining-tokens": "18",
        "x-ratelimit-reset-tokens": "16.8s",
    }
    for stream in (True, False):
        response = await client.post("/v1/completions", json={**REQUEST, "stream": stream}, headers=of("a"))
        assert response.status == 200
        assert "x-ratelimit-remaining-tokens" in response.headers
        await response.read()
    response = await client.post("/v1/completions", json=REQUEST, headers=of("a"))
    assert response.headers["Retry-After"] == "20"
    assert response.headers["x-ratelimit-remaining-requests"] == "0"
    error = await error_of(response, 429)
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert "'a' may use 3 requests a minute" in error["message"]


async def test_key_has_a_quota_of_its_own_and_routes_without_the_model_have_none(client: Client) -> None:
    for _ in range(5):
        response = await client.post("/v1/completions", json={**REQUEST, "max_tokens": 50}, headers=of("b"))
        assert (response.status, response.headers["x-ratelimit-limit-requests"]) == (200, "100")
        assert "x-ratelimit-limit-tokens" not in response.headers
        for path in ("/v1/models", "/health"):
            response = await client.get(path, headers=of("a"))
            assert response.status == 200
            assert "x-ratelimit-limit-requests" not in response.headers


async def test_call_of_several_answers_counts_as_one_request(client: Client) -> None:
    body = {**REQUEST, "n": 3, "max_tokens": 2}
    response = await client.post("/v1/completions", json=body, headers=of("a"))
    assert (response.status, response.headers["x-ratelimit-remaining-requests"]) == (200, "2")
    error = await error_of(
        await client.post("/v1/completions", json={**REQUEST, "max_tokens": 30}, headers=of("a")), 400
    )
    assert error["param"] == "max_tokens"


async def test_without_keys_each_address_has_its_quota(serve: Serve) -> None:
    client = await serve(FakeEngine(lambda _: "yes"), ServerSettings(auth=AuthSettings(rate=Rate(requests=1))))
    assert (await client.post("/v1/completions", json=REQUEST)).status == 200
    error = await error_of(await client.post("/v1/completions", json=REQUEST), 429)
    assert "'127.0.0.1' may use 1 requests" in error["message"]
    metrics = await (await client.get("/metrics")).text()
    assert 'rnn_engine_rate_limited_total{quota="requests"} 1.0' in metrics


async def test_openais_client_knows_the_refusal(client: Client) -> None:
    asker = openai.AsyncOpenAI(api_key="key-a", base_url=str(client.make_url("/v1")), max_retries=0)
    async with asker:
        for _ in range(3):
            await asker.completions.create(model="fake", prompt="a", max_tokens=1)
        with pytest.raises(openai.RateLimitError) as refusal:
            await asker.completions.create(model="fake", prompt="a", max_tokens=1)
    assert refusal.value.code == "rate_limit_exceeded"
