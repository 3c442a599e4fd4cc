"""Locks by key: one holder at a time for each key, without waiting for other keys."""

from __future__ import annotations

import asyncio

from rnn_engine_states.named.store import KeyedLocks


async def test_turns_of_one_key_are_taken_in_order_and_others_do_not_wait() -> None:
    locks, said = KeyedLocks(), list[str]()
    first_may_go = asyncio.Event()

    async def speak(key: str, word: str) -> None:
        async with locks.hold(key):
            said.append(f"{word} begins")
            if word == "first":
                await first_may_go.wait()
            await asyncio.sleep(0)
            said.append(f"{word} ends")

    tasks = [asyncio.create_task(speak("a", word)) for word in ("first", "second", "gone", "third")]
    await asyncio.sleep(0)
    await speak("b", "other")
    tasks[2].cancel()
    first_may_go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    spoken = ["first begins", "other begins", "other ends", "first ends"]
    assert said == [*spoken, "second begins", "second ends", "third begins", "third ends"]
    assert len(locks) == 0
