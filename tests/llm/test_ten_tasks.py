"""Ten tasks with `Engine` alone and with `LLM`: both run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from rnn_engine import LLM, SamplingParams
from rnn_engine.chat_template import ChatMessage, Conversation, Role, Tool
from rnn_engine.chat_template.answer import AnswerForm, AnswerPart, AnswerReader
from rnn_engine.demo import model_path, pirate_state_path
from rnn_engine.engine import Engine
from rnn_engine.grammar import json_grammar
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.operations.chat_prompt import prompt_after, tool_grammar
from rnn_engine.operations.embedding import EmbeddingSettings, embed
from rnn_engine.operations.naming import run_tokens
from rnn_engine.operations.scoring import probabilities, score_choices
from rnn_engine.requests import GenerateRequest, MixedState, StateMix, TextDelta
from rnn_engine_states.frozen import FrozenState


@dataclass
class Person:
    name: str
    age: int


async def chat(engine: Engine) -> None:
    conversation = Conversation([ChatMessage(Role.USER, "What is the capital of France?")])
    prompt = prompt_after(engine, None, conversation)
    request = GenerateRequest(prompt.tokens, stop=prompt.stop, stop_tokens=(0, *prompt.stop_tokens))
    async for event in engine.generate(request):
        if isinstance(event, TextDelta):
            print(event.text, end="")


async def many(engine: Engine) -> None:
    async def answer(number: int) -> str:
        prompt = engine.tokenize(f"User: What is {number} + 1?\n\nAssistant:")
        sampling = SamplingParams(temperature=0.8, seed=1)
        request = GenerateRequest(prompt, max_tokens=50, stop="\n\n", sampling=sampling)
        events = engine.generate(request, wait_for_room=True)
        return "".join([event.text async for event in events if isinstance(event, TextDelta)])

    for text in await asyncio.gather(*map(answer, range(20))):
        print(text)


async def stream(engine: Engine) -> None:
    prompt = prompt_after(engine, None, Conversation([ChatMessage(Role.USER, "Tell me a joke.")]))
    request = GenerateRequest(prompt.tokens, stop=prompt.stop, stop_tokens=(0, *prompt.stop_tokens))
    async for event in engine.generate(request):
        if isinstance(event, TextDelta):
            print(event.text, end="", flush=True)


async def lines(engine: Engine) -> None:
    Path("sums.jsonl").write_text('{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n')

    async def answer(line: dict[str, int]) -> str:
        conversation = Conversation([ChatMessage(Role.USER, "What is {a} + {b}?".format_map(line))])
        prompt = prompt_after(engine, None, conversation)
        request = GenerateRequest(prompt.tokens, stop=prompt.stop, stop_tokens=(0, *prompt.stop_tokens))
        events = engine.generate(request, wait_for_room=True)
        text = "".join([event.text async for event in events if isinstance(event, TextDelta)])
        return json.dumps({**line, "completion": text})

    found = [json.loads(line) for line in Path("sums.jsonl").read_text().splitlines()]
    Path("answers.jsonl").write_text("\n".join(await asyncio.gather(*map(answer, found))))
    print(Path("answers.jsonl").read_text())


async def objects(engine: Engine) -> None:
    adapter = TypeAdapter(Person)
    schema = {**adapter.json_schema(), "additionalProperties": False}
    request = GenerateRequest(engine.tokenize("Ann is 31 years old. As JSON: "), grammar=json_grammar(schema, "schema"))
    events = engine.generate(request)
    text = "".join([event.text async for event in events if isinstance(event, TextDelta)])
    person = adapter.validate_json(text)
    print(person.name, person.age)


async def choices(engine: Engine) -> None:
    context = engine.tokenize("User: What is the capital of France?\n\nAssistant: The capital of France is")
    texts = [" Rome", " Paris"]
    scores = await score_choices(engine, context, [engine.tokenize(text) for text in texts])
    shares = probabilities([score.total for score in scores])
    for share, text in sorted(zip(shares, texts, strict=True), reverse=True):
        print(text, share)


async def embeddings(engine: Engine) -> None:
    inputs = [engine.tokenize(text) for text in ("a dog", "a puppy", "a bill")]
    vectors = [each.vector for each in await embed(engine, inputs, EmbeddingSettings(layer=-1, dimensions=64))]
    print([[one @ other for other in vectors] for one in vectors])


async def tools(engine: Engine) -> None:
    weather = Tool("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
    conversation = Conversation([ChatMessage(Role.USER, "What is the weather in Paris?")], [weather])
    prompt = prompt_after(engine, None, conversation)
    form = engine.info.chat_template.tool_format
    request = GenerateRequest(
        prompt.tokens, stop=prompt.stop, grammar=tool_grammar(form, [weather], prompt, required=False, parallel=True)
    )
    reader = AnswerReader(AnswerForm(prompt.thought, bracket=prompt.ends_in_tag, tools=form, names=["get_weather"]))
    async for event in engine.generate(request):
        if isinstance(event, TextDelta):
            for piece in reader.feed(event.text):
                if piece.part in (AnswerPart.CALL, AnswerPart.ARGUMENTS):
                    print(piece.text)


async def states(engine: Engine) -> None:
    system = Conversation([ChatMessage(Role.SYSTEM, "You answer in one word.")], answers=False)
    brief, _ = await run_tokens(engine, None, prompt_after(engine, None, system).tokens)
    conversation = Conversation([ChatMessage(Role.USER, "What is the capital of France?")])
    prompt = prompt_after(engine, brief, conversation)
    request = GenerateRequest(prompt.tokens, initial_state=brief.for_request, stop=prompt.stop)
    events = engine.generate(request)
    print("".join([event.text async for event in events if isinstance(event, TextDelta)]))


async def mix(engine: Engine) -> None:
    pirate: FrozenState = engine.state_files.freeze(engine.state_files.read(pirate_state_path()), "pirate")
    conversation = Conversation([ChatMessage(Role.USER, "Who are you?")])
    prompt = prompt_after(engine, pirate, conversation)
    plain = MixedState(0.3, None, prompt_after(engine, None, conversation).tokens)
    request = GenerateRequest(
        prompt.tokens, initial_state=pirate.for_request, mix=StateMix(0.7, [plain], "probability"), stop=prompt.stop
    )
    events = engine.generate(request)
    print("".join([event.text async for event in events if isinstance(event, TextDelta)]))


def short_chat(llm: LLM) -> None:
    print(llm.chat("What is the capital of France?"))


def short_many(llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, max_tokens=50, stop="\n\n", seed=1)
    for done in llm.generate([f"User: What is {n} + 1?\n\nAssistant:" for n in range(20)], params):
        print(done.text)


def short_lines(llm: LLM) -> None:
    Path("sums.jsonl").write_text('{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n')
    lines = [json.loads(line) for line in Path("sums.jsonl").read_text().splitlines()]
    chats = [[{"role": "user", "content": "What is {a} + {b}?".format_map(line)}] for line in lines]
    for line, done in zip(lines, llm.chat(chats), strict=True):
        print({**line, "completion": done.text})


def short_stream(llm: LLM) -> None:
    for piece in llm.stream([{"role": "user", "content": "Tell me a joke."}]):
        print(piece, end="", flush=True)


def short_objects(llm: LLM) -> None:
    person = llm.json("Ann is 31 years old. As JSON: ", Person)
    print(person.name, person.age)


def short_choices(llm: LLM) -> None:
    context = "User: What is the capital of France?\n\nAssistant: The capital of France is"
    for choice in llm.rank(context, [" Rome", " Paris"]):
        print(choice.text, choice.probability)


def short_embeddings(llm: LLM) -> None:
    vectors = llm.embed(["a dog", "a puppy", "a bill"], EmbeddingSettings(layer=-1, dimensions=64))
    print(vectors @ vectors.T)


def short_tools(llm: LLM) -> None:
    weather = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    for call in llm.chat("What is the weather in Paris?", tools=[weather]).tool_calls:
        print(call.name, call.arguments)


def short_states(llm: LLM) -> None:
    brief = llm.state([{"role": "system", "content": "You answer in one word."}])
    print(llm.chat("What is the capital of France?", state=brief))


def short_mix(llm: LLM) -> None:
    pirate = llm.load_state(pirate_state_path())
    print(llm.chat("Who are you?", state=[(pirate, 0.7), (None, 0.3)], mix="probability"))


TASKS: dict[str, tuple[Callable[[Engine], Awaitable[None]], Callable[[LLM], None]]] = {
    "chat": (chat, short_chat),
    "many texts": (many, short_many),
    "a file's lines": (lines, short_lines),
    "stream": (stream, short_stream),
    "objects": (objects, short_objects),
    "choices": (choices, short_choices),
    "embeddings": (embeddings, short_embeddings),
    "tools": (tools, short_tools),
    "states": (states, short_states),
    "mixes": (mix, short_mix),
}


async def test_each_task_runs_with_the_engine_alone_and_with_an_llm(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    async with await Engine.load(model_path(), LoadSettings(device="cpu")) as engine:
        for with_engine, with_llm in TASKS.values():
            await with_engine(engine)
            assert capsys.readouterr().out.strip()
            with_llm(llm)
            assert capsys.readouterr().out.strip()
