"""The load of chats: the questions, and the figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from xml.etree.ElementTree import fromstring

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from tools.bench.load.client import Asked, Clients, Traffic, arrivals, conversations, run_closed, run_open
from tools.bench.load.figures import Figures, summarise, table
from tools.bench.load.modelled import ChatTokenizer
from tools.bench.load.plot import draw
from tools.bench.modelled import VOCAB, Hardware, make_engine, served
from tools.live_server.asking import Answer

SVG = "{http://www.w3.org/2000/svg}"

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
    assert {len(conversation.turns) for conversation in first} == {2}
    assert first[0].turns[0].pause == 0


def test_arrivals_come_at_their_rate() -> None:
    moments = arrivals(5, 200, seed=1)
    assert 850 < len(moments) < 1150
    assert moments == sorted(moments)
    assert moments[-1] < 200


def test_figures_follow_from_the_times() -> None:
    first = answer(0.0, [0.1, 0.3, 1.1], tokens=11, prompt_tokens=100, cached_tokens=0)
    second = answer(1.0, [1.3, 1.4, 2.3], tokens=11, prompt_tokens=100, cached_tokens=50)
    figures = summarise(Asked([first, second], refused=1), cache=True, load="closed", size=2, seconds=2.0)
    assert figures.first_median == pytest.approx(200)
    assert figures.between_median == pytest.approx(100)
    assert figures.gap_99 == pytest.approx(900, rel=0.01)
    assert figures.tokens_per_second == pytest.approx((11 + 11 * 2 / 3) / 2)  # tokens after 2 s do not count
    assert figures.saved == pytest.approx(0.25)
    assert table([figures]).splitlines()[-1] == "| 2 clients | on | 2 | 1 | 200 | 290 | 100.0 | 897 | 9 | 25 % |"


def test_a_single_answer_of_one_token_has_figures() -> None:
    asked = Asked([answer(0.0, [0.5], tokens=1, prompt_tokens=4, cached_tokens=0)], refused=0)
    figures = summarise(asked, cache=False, load="open", size=0.5, seconds=1.0)
    assert (figures.first_median, figures.first_95, figures.between_median, figures.gap_99) == (500, 500, 0, 0)


def test_a_plot_has_a_curve_for_each_figure_with_the_cache_and_without() -> None:
    line = Figures(True, "closed", 1, 9, 0, 20.0, 40.0, 3.0, 5.0, 100.0, 0.5)
    lines = [
        replace(line, cache=cache, size=size, first_median=first)
        for cache, size, first in ((True, 1, 20.0), (True, 64, 30.0), (False, 1, 200.0), (False, 64, 2000.0))
    ]
    panels = fromstring(draw(lines, "a & b")).findall(f"{SVG}g")
    assert len(panels) == 3
    curves = {path.get("class"): path.get("d") for path in panels[0].iter(f"{SVG}path")}
    assert {"on", "off", "on high", "off high"} < set(curves)
    (low_x, low_y), (high_x, high_y) = (point.split(",") for point in str(curves["off"])[1:].split())
    assert float(low_x) < float(high_x)
    assert float(low_y) > float(high_y)  # the greater figure stands higher


@pytest.mark.parametrize("figure", [0.0, 50.0])
def test_a_plot_of_figures_that_are_all_the_same_can_be_drawn(figure: float) -> None:
    line = Figures(True, "open", 2, 9, 0, 20.0, 20.0, figure, 5.0, 100.0, 0.5)
    assert "tokens a second" in draw([line], "one load")


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
    async with TestServer(app) as running:
        url = str(running.make_url("")).rstrip("/")
        asked = await (run_closed(url, TRAFFIC, 1, 0.5) if load == "closed" else run_open(url, TRAFFIC, 50, 0.2))
    assert asked.refused == 1
    assert asked.answers[0].cached_tokens == 3
    second_turns = [body["messages"] for body in server.bodies if len(body["messages"]) == 4]  # type: ignore[arg-type]
    assert second_turns
    assert all(messages[2] == {"role": "assistant", "content": "2"} for messages in second_turns)  # type: ignore[index]
    assert all(moment > answer.asked for answer in asked.answers for moment in answer.moments)


async def test_an_answer_of_a_modelled_server_is_known_to_its_cache_when_it_is_asked_about() -> None:
    traffic = replace(TRAFFIC, system_words=40, answer_tokens=5)
    engine = make_engine(Hardware(slots=2, step=0.001, token=0.0), ChatTokenizer(VOCAB))
    async with served(engine, 1) as port, ClientSession() as session:
        clients = Clients(session, f"http://127.0.0.1:{port}", traffic)
        await clients.chat(next(conversations(traffic, seed=1)))
    first, second = clients.answers
    assert (first.cached_tokens, first.tokens) == (0, 5)
    assert second.cached_tokens >= first.prompt_tokens + first.tokens - 1
