"""Locks of states: one holder at a time for each state, without waiting for other states."""

from __future__ import annotations

import asyncio
import gc
import uuid

from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.named.store import LocalTable, StateStore
from tests.support.toy_states import toy_shape


async def test_turns_at_one_state_are_taken_in_order_and_others_do_not_wait() -> None:
    table, said = LocalTable(StateFiles(toy_shape(), "model")), list[str]()
    first, other = uuid.uuid4(), uuid.uuid4()
    first_may_go = asyncio.Event()

    async def speak(key: uuid.UUID, word: str) -> None:
        async with StateStore(table).lock(key):
            said.append(f"{word} begins")
            if word == "first":
                await first_may_go.wait()
            await asyncio.sleep(0)
            said.append(f"{word} ends")

    tasks = [asyncio.create_task(speak(first, word)) for word in ("first", "second", "gone", "third")]
    await asyncio.sleep(0)
    await speak(other, "other")
    tasks[2].cancel()
    first_may_go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    spoken = ["first begins", "other begins", "other ends", "first ends"]
    assert said == [*spoken, "second begins", "second ends", "third begins", "third ends"]
    del tasks
    await asyncio.sleep(0)  # after which the loop holds none of their results
    gc.collect()  # the traceback of the one that was cancelled
    assert not table.locks
