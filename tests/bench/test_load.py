"""The load of chats: what is asked, and what the figures say."""

from __future__ import annotations

from itertools import islice

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tools.bench.load.client import Answered, run_closed, run_open
from tools.bench.load.figures import summarise, table
from tools.bench.load.traffic import Traffic, arrivals, conversations

TRAFFIC = Traffic(systems=2, system_words=3, turns=2, question_words=2, answer_tokens=2, pause=0.001)


def test_conversations_are_the_same_for_a_seed_and_share_their_system_texts() -> None:
    first, again, other = (list(islice(conversations(TRAFFIC, seed), 20)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    systems = {conversation.system for conversation in first + other}
    assert len(systems) == TRAFFIC.systems
    assert {len(conversation.turns) for conversation in first} == {2}
    assert first[0].turns[0].pause == 0


def test_arrivals_come_at_their_rate() -> None:
    moments = arrivals(5, 200, seed=1)
    assert 850 < len(moments) < 1150
    assert moments == sorted(moments)
    assert moments[-1] < 200


def answer(asked: float, first: float, ended: float, cached: int) -> Answered:
    return Answered(asked, first, ended, tokens=11, prompt_tokens=100, cached_tokens=cached)


def test_figures_follow_from_the_times() -> None:
    answers = [answer(0, 0.1, 1.1, 0), answer(1, 1.3, 2.3, 50)]
    figures = summarise(answers, cache=True, load="closed", size=2, refused=1)
    assert figures.first_median == pytest.approx(200)
    assert figures.between_median == pytest.approx(100)
    assert figures.tokens_per_second == pytest.approx(22 / 2.3)
    assert figures.saved == pytest.approx(0.25)
    assert table([figures]).splitlines()[-1] == "| 2 clients | on | 2 | 1 | 200 | 290 | 100.0 | 100.0 | 10 | 25 % |"


class Server:
    """Answers each chat with its number of messages, and refuses the second one."""

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
    async with TestServer(app) as running:
        url = str(running.make_url("")).rstrip("/")
        clients = await (run_closed(url, TRAFFIC, 1, 0.5) if load == "closed" else run_open(url, TRAFFIC, 50, 0.2))
    assert clients.refused == 1
    assert clients.answers[0].cached_tokens == 3
    second_turns = [body["messages"] for body in server.bodies if len(body["messages"]) == 4]  # type: ignore[arg-type]
    assert second_turns
    assert all(messages[2] == {"role": "assistant", "content": "2"} for messages in second_turns)  # type: ignore[index]
