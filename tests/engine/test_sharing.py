"""Clients that share an engine: their requests are suspended and go on, and their answers do not change."""

from __future__ import annotations

import asyncio

from rnn_engine.cli.session import load_engine
from rnn_engine.interface import EngineLike
from rnn_engine.requests import Client, GenerateRequest, SamplingParams, TextDelta
from tests.support.demo_server import demo_choice


async def answer(engine: EngineLike, client: str, first: int) -> list[int]:
    sampling = SamplingParams(temperature=1.0, frequency_penalty=0.4, repeat_penalty=1.1, seed=first)
    request = GenerateRequest([first, 20, 30], max_tokens=90, stop_tokens=(), client=Client(client), sampling=sampling)
    events = [event async for event in engine.generate(request)]
    return [info.token for event in events if isinstance(event, TextDelta) for info in event.tokens]


async def test_answers_are_the_same_alone_and_where_clients_share_the_slots() -> None:
    engine = await load_engine(demo_choice(slots=2, cache=None))
    asked = [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5)]
    alone = [await answer(engine, *one) for one in asked]
    assert engine.counters().suspensions == 0
    assert await asyncio.gather(*(answer(engine, *one) for one in asked)) == alone
    assert engine.counters().suspensions > 0
    await engine.close()
