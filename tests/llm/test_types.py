"""What the type checker infers from the public names; mypy checks this file, and pyright has checked it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from rnn_engine import (
    LLM,
    AsyncLLM,
    ChatMessage,
    Completion,
    EmbeddingSettings,
    Engine,
    RankedChoice,
    SamplingParams,
    State,
    ToolCall,
)
from rnn_engine.chat_template import Role

ONE = SamplingParams(temperature=0.5, max_tokens=1, stop=["\n"])
WHOLE = SamplingParams(max_tokens=60)


class Place(BaseModel):
    city: str


@dataclass
class Person:
    age: int


def test_calls_of_one_and_of_many_have_types_of_their_own(llm: LLM) -> None:
    assert_type(llm.generate("x", ONE), Completion)
    assert_type(llm.generate([1, 2], ONE), Completion)
    assert_type(llm.generate(["x", "y"], [ONE, ONE]), list[Completion])
    assert_type(llm.generate([[1], [2]], ONE), list[Completion])
    assert_type(llm.chat("x", ONE), Completion)
    assert_type(llm.chat([{"role": "user", "content": "x"}], ONE), Completion)
    assert_type(llm.chat([[ChatMessage(Role.USER, "x")]], ONE), list[Completion])
    assert_type(llm.chat("x", ONE).tool_calls, tuple[ToolCall, ...])
    assert_type(list(llm.stream("x", ONE)), list[str])


def test_json_has_the_type_that_was_asked_for(llm: LLM) -> None:
    assert_type(llm.json("x", Person, WHOLE), Person)
    assert_type(llm.json("x", {"const": 1}, WHOLE), object)
    assert_type(llm.json("x", bool, WHOLE), bool)


def test_scores_vectors_and_states_are_typed(llm: LLM) -> None:
    assert_type(llm.rank("x", ["y", "z"]), list[RankedChoice])
    assert_type(llm.logprobs(["x"])[0].perplexity, float)
    assert_type(llm.embed(["x"], EmbeddingSettings(layer=-1)), NDArray[np.float32])
    state = llm.state("x")
    assert_type(state, State)
    assert_type(state + 0.5 * (state - state), State)
    assert_type(state["wkv"], NDArray[np.float32])
    assert_type(llm.chat("x", ONE, state=[(state, 1.0), (None, 0.5)], keep_state=True).state, State | None)
    assert_type(llm.engine, Engine)


async def the_twin_is_typed_likewise(twin: AsyncLLM) -> None:
    assert_type(await twin.generate("x"), Completion)
    assert_type(await twin.generate(["x"]), list[Completion])
    assert_type(await twin.json("x", Place), Place)
    async for piece in twin.stream("x"):
        assert_type(piece, str)
