"""Ask the openings, and print each answer that is not sensible, with the reason, and the percentages by category.

    python -m tools.demo_model.openings [MODEL]
    python -m tools.demo_model.openings --url http://127.0.0.1:65530

Answers are decoded greedily, or, with --seed, sampled with the server's defaults. The model itself answers the earlier
turns of a conversation. --all prints the sensible answers too. The row "held out" leaves out very short openings, since
the training text may contain them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from tools.demo_model.evaluate import CLIENTS, Server, model_arguments, serving
from tools.demo_model.openings.rubric import Opening, load_openings

Respond: TypeAlias = Callable[[list[dict[str, str]]], str]
"""Takes the messages of a conversation and returns the next one."""


def converse(opening: Opening, respond: Respond) -> list[str]:
    """Send the turns of an opening one after another, and return the model's answers."""
    messages: list[dict[str, str]] = []
    for turn in opening.turns:
        messages.append({"role": "user", "content": turn})
        messages.append({"role": "assistant", "content": respond(messages)})
    return [message["content"] for message in messages[1::2]]


def ask_all(openings: Sequence[Opening], respond: Respond) -> list[list[str]]:
    """Return the answers to each opening. Several openings are sent in parallel."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(partial(converse, respond=respond), openings))


def report(openings: Sequence[Opening], answers: Sequence[Sequence[str]], *, everything: bool) -> str:
    """Return a report: the answers that are not sensible, or all if `everything`, and a table by category."""
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
    model_arguments(parser)
    parser.add_argument("--all", action="store_true", help="print the sensible answers too")
    parser.add_argument("--seed", type=int, help="sample with the server's defaults from this seed")
    options = parser.parse_args()
    openings = load_openings()
    with serving(options) as url:
        answers = ask_all(openings, Server(url, seed=options.seed).chat)
    print(report(openings, answers, everything=options.all))


if __name__ == "__main__":
    main()
