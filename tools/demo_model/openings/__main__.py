"""Ask the openings, and print each answer that is not sensible, with the reason, and the percentages by category.

    python -m tools.demo_model.openings [MODEL]
    python -m tools.demo_model.openings --url http://127.0.0.1:65530

Answers are decoded greedily. The model itself answers the earlier turns of a conversation. --all prints the sensible
answers too. The row "held out" leaves out very short openings, since the training text may contain them.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeAlias

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.operations.chat_prompt import make_chat_prompt
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta
from tools.demo_model.evaluate import CLIENTS, MAX_TOKENS, Server
from tools.demo_model.openings.rubric import Opening, load_openings

MAX_CHARACTERS = 2**20

Respond: TypeAlias = Callable[[Sequence[ChatMessage]], str]


def converse(opening: Opening, respond: Respond) -> list[str]:
    """Return the answers to the turns of an opening."""
    messages: list[ChatMessage] = []
    for turn in opening.turns:
        messages.append(ChatMessage(Role.USER, turn))
        messages.append(ChatMessage(Role.ASSISTANT, respond(messages)))
    return [message.content for message in messages[1::2]]


async def _generate(engine: Engine, messages: Sequence[ChatMessage]) -> str:
    prompt = make_chat_prompt(engine, engine.info.chat_template, Conversation(messages), MAX_CHARACTERS)
    request = GenerateRequest(
        prompt=prompt.tokens,
        max_tokens=MAX_TOKENS,
        stop=[text.encode() for text in prompt.stop],
        sampling=SamplingParams(temperature=0.0),
    )
    text = ""
    async with aclosing(engine.generate(request, wait_for_room=True)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                text += event.text
    return text.strip()


async def ask_engine(model: Path, openings: Sequence[Opening], *, device: str = "auto") -> list[list[str]]:
    """Return, for each opening, the answers of a model file to its turns."""
    async with await Engine.load(model, LoadSettings(device), num_slots=CLIENTS, cache=None) as engine:
        loop = asyncio.get_running_loop()

        def respond(messages: Sequence[ChatMessage]) -> str:
            return asyncio.run_coroutine_threadsafe(_generate(engine, list(messages)), loop).result()

        return await asyncio.to_thread(_ask_all, openings, respond)


def _ask_all(openings: Sequence[Opening], respond: Respond) -> list[list[str]]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(partial(converse, respond=respond), openings))


def report(openings: Sequence[Opening], answers: Sequence[Sequence[str]], *, everything: bool) -> str:
    """Return a text of the answers that are not sensible, or of all, and a table by category."""
    lines = []
    faults = [opening.fault(turns[-1]) for opening, turns in zip(openings, answers, strict=True)]
    for opening, turns, fault in zip(openings, answers, faults, strict=True):
        if everything or fault is not None:
            said = " | ".join(f"{turn} -> {answer!r}" for turn, answer in zip(opening.turns, turns, strict=True))
            lines.append(f"{opening.category}: {said}: {'sensible' if fault is None else fault}")
    lines += ["", "| category | sensible | openings |", "|---|---|---|"]
    sensible = {opening: fault is None for opening, fault in zip(openings, faults, strict=True)}
    for category in dict.fromkeys(opening.category for opening in openings):
        lines.append(_row(category, [good for each, good in sensible.items() if each.category == category]))
    lines.append(_row("held out", [good for each, good in sensible.items() if not each.is_short]))
    lines.append(_row("all", list(sensible.values())))
    return "\n".join(lines)


def _row(name: str, sensible: Sequence[bool]) -> str:
    return f"| {name} | {100 * sum(sensible) / len(sensible):.1f} % | {len(sensible)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=model_path(), help="a model file")
    parser.add_argument("--url", help="a server's root URL: ask this server and not the model file")
    parser.add_argument("--all", action="store_true", help="print the sensible answers too")
    options = parser.parse_args()
    openings = load_openings()
    if options.url is None:
        answers = asyncio.run(ask_engine(options.model, openings))
    else:
        answers = _ask_all(openings, Server(options.url).respond)
    print(report(openings, answers, everything=options.all))


if __name__ == "__main__":
    main()
