"""What type checkers infer from every public name.

`tests/setup/test_wheel.py` checks this file with mypy and pyright as a user's, in an environment with the wheel alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from rnn_engine import (
    LLM,
    AsyncCollection,
    AsyncLLM,
    ChatMessage,
    Collection,
    Completion,
    Document,
    EmbeddingSettings,
    Engine,
    GenerationInterrupted,
    Hit,
    LoadSettings,
    Model,
    RankedChoice,
    RankedDocument,
    RnnEngineError,
    SamplingParams,
    Search,
    State,
    Tool,
    ToolCall,
    Traced,
    Tuner,
    TunerSettings,
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
    assert_type(llm.chat("x", ONE, tools=[Tool("f"), {"name": "g"}]).tool_calls, tuple[ToolCall, ...])
    assert_type(list(llm.stream("x", ONE)), list[str])


def test_json_has_the_type_that_was_asked_for(llm: LLM) -> None:
    assert_type(llm.json("x", Person, WHOLE), Person)
    assert_type(llm.json("x", {"const": 1}, WHOLE), object)
    assert_type(llm.json("x", bool, WHOLE), bool)


def test_scores_vectors_and_states_are_typed(llm: LLM) -> None:
    assert_type(llm.rank("x", ["y", "z"]), list[RankedChoice])
    assert_type(llm.rerank("x", ["y", "z"]), list[RankedDocument])
    assert_type(llm.logprobs(["x"])[0].perplexity, float)
    assert_type(llm.embed(["x"], EmbeddingSettings(layer=-1)), NDArray[np.float32])
    state = llm.state("x")
    assert_type(state, State)
    assert_type(state + 0.5 * (state - state), State)
    assert_type(state["wkv"], NDArray[np.float32])
    assert_type(llm.chat("x", ONE, state=[(state, 1.0), (None, 0.5)], keep_state=True).state, State | None)
    assert_type(llm.engine, Engine)


def collections_are_typed(llm: LLM) -> None:
    notes = llm.collection("notes", "folder")
    assert_type(notes, Collection)
    assert_type(notes.add(["x", {"text": "y"}, Document("z", "z")]), list[str])
    found = notes.query("x", top_n=1)
    assert_type(found, Search)
    assert_type(found.hits, tuple[Hit, ...])
    assert_type(found.hits[0].document, Document)
    assert_type(list(notes), list[Document])


def test_the_model_is_typed() -> None:
    with Model(device="cpu") as model:
        logits, state = model.forward(model.tokenize("x"))
        assert_type(logits, NDArray[np.float32])
        assert_type(model.forward_batch([([1], state), ([2], None)]), list[tuple[NDArray[np.float32], State]])
        traced = model.trace([1], layers=[0])
        assert_type(traced, Traced)
        assert_type(traced.hidden[0], NDArray[np.float32])


def states_are_tuned_with_types(path: str) -> None:
    with Tuner(path, settings=TunerSettings(steps=1), device="cpu") as tuner:
        assert_type(tuner.run(), State)
        assert_type(tuner.state, State)
        assert_type([event.step for event in tuner.judged], list[int])


def test_errors_are_typed(llm: LLM) -> None:
    try:
        llm.generate("x", ONE)
    except GenerationInterrupted as interrupted:
        assert_type(interrupted.completions, dict[int, Completion])
    except RnnEngineError as error:
        assert_type(error, RnnEngineError)


async def an_engine_can_be_wrapped(path: str) -> AsyncLLM:
    return AsyncLLM(await Engine.load(path, LoadSettings(device="cpu")))


async def the_twin_is_typed_likewise(twin: AsyncLLM) -> None:
    assert_type(await twin.generate("x"), Completion)
    assert_type(await twin.generate(["x"]), list[Completion])
    assert_type(await twin.json("x", Place), Place)
    notes = await twin.collection()
    assert_type(notes, AsyncCollection)
    assert_type(await notes.query("x"), Search)
    async for piece in twin.stream("x"):
        assert_type(piece, str)
