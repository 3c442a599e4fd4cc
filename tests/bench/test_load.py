"""The load of chats: the questions, and the figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from tools.bench.load import BETWEEN, FIRST, FIRST_95, SPEED, Clients, Line, Traffic, arrivals, conversations, summarise
from tools.bench.modelled import make_engine
from tools.live_server.asking import Answer

TRAFFIC = Traffic(systems=2, system_words=3, turns=2, question_words=2, answer_tokens=2, pause=0.001)


def answer(asked: float, moments: list[float], tokens: int, prompt_tokens: int, cached_tokens: int) -> Answer:
    usage = {"completion_tokens": tokens, "prompt_tokens": prompt_tokens}
    return Answer(
        asked, 200, moments=moments, usage=usage | {"prompt_tokens_details": {"cached_tokens": cached_tokens}}
    )


def test_conversations_are_the_same_for_a_seed_and_share_their_system_texts() -> None:
    first, again, other = (list(islice(conversations(TRAFFIC, seed), 20)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    systems = {conversation.system for conversation in first + other}
    assert len(systems) == TRAFFIC.systems
    assert {len(conversation.questions) for conversation in first} == {2}
    assert first[0].pauses[0] == 0


def test_arrivals_come_at_their_rate() -> None:
    moments = arrivals(5, 200, seed=1)
    assert 850 < len(moments) < 1150
    assert moments == sorted(moments)
    assert moments[-1] < 200


async def clients_with(answers: list[Answer], refused: int = 0) -> Clients:
    async with ClientSession() as session:
        clients = Clients(session, "http://localhost", TRAFFIC)
    clients.answers, clients.refused = answers, refused
    return clients


async def test_figures_follow_from_the_times() -> None:
    first = answer(0.0, [0.1, 0.3, 1.1], tokens=11, prompt_tokens=100, cached_tokens=0)
    second = answer(1.0, [1.3, 1.4, 2.3], tokens=11, prompt_tokens=100, cached_tokens=50)
    figures = summarise(await clients_with([first, second], refused=1), seconds=2.0, cpu=0.22)
    assert figures[FIRST] == pytest.approx(200)
    assert figures[BETWEEN] == pytest.approx(100)
    assert figures["longest gaps, 99 %"] == pytest.approx(900, rel=0.01)
    assert figures[SPEED] == pytest.approx((11 + 11 * 2 / 3) / 2)  # tokens after 2 s do not count
    row = str(Line("cache", "closed", 2, figures))
    assert row == "| 2 clients | cache | 2 | 1 | 200.0 | 290.0 | 100.0 | 897.0 | 9.17 | 25.0 | 10.0 |"


async def test_a_single_answer_of_one_token_has_figures() -> None:
    one = answer(0.0, [0.5], tokens=1, prompt_tokens=4, cached_tokens=0)
    figures = summarise(await clients_with([one]), seconds=1.0, cpu=0.0)
    assert [figures[name] for name in (FIRST, FIRST_95, BETWEEN, "longest gaps, 99 %")] == [500, 500, 0, 0]


class Server:
    """A server that answers each chat with its number of messages, and refuses the second chat."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if len(self.bodies) == 2:
            return web.json_response({}, status=429)
        count = len(body["messages"])
        usage = '{"completion_tokens": 2, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 3}}'
        lines = (
            f'data: {{"choices": [{{"delta": {{"content": "{count}"}}}}]}}\n\n',
            f'data: {{"choices": [], "usage": {usage}}}\n\n',
            "data: [DONE]\n\n",
        )
        return web.Response(text="".join(lines), content_type="text/event-stream")


@pytest.mark.parametrize("load", ["closed", "open"])
async def test_each_answer_is_part_of_what_is_sent_next(load: str) -> None:
    server = Server()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    async with TestServer(app) as running, ClientSession() as session:
        clients = Clients(session, str(running.make_url("")).rstrip("/"), TRAFFIC)
        await (clients.run_closed(1, 0.5) if load == "closed" else clients.run_open(50, 0.2))
    assert clients.refused == 1
    assert clients.answers[0].cached_tokens == 3
    second_turns = [body["messages"] for body in server.bodies if len(body["messages"]) == 4]  # type: ignore[arg-type]
    assert second_turns
    assert all(messages[2] == {"role": "assistant", "content": "2"} for messages in second_turns)  # type: ignore[index]
    assert all(moment > answer.asked for answer in clients.answers for moment in answer.moments)


async def test_an_answer_of_a_modelled_server_is_known_to_its_cache_when_it_is_asked_about() -> None:
    traffic = replace(TRAFFIC, system_words=40, answer_tokens=5)
    engine = make_engine(slots=2, step=0.001, token=0.0)
    async with TestServer(make_app(engine, ServerSettings())) as running, ClientSession() as session:
        clients = Clients(session, str(running.make_url("")).rstrip("/"), traffic)
        await clients.chat(next(conversations(traffic, seed=1)))
    first, second = clients.answers
    assert (first.cached_tokens, first.tokens) == (0, 5)
    assert first.first >= 0.001
    assert second.cached_tokens >= first.prompt_tokens + first.tokens - 1
