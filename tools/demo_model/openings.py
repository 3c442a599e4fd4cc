"""`python -m tools.demo_model.openings`: ask the demo model what newcomers may open a chat with, and judge its answers.

The openings, in openings.toml, are held out of training, and each has patterns that a sensible answer matches. Prints
each answer that is not sensible, with the reason, and the percentages by category. Answers are decoded greedily, or,
with --seed, sampled with the defaults. The model itself answers the earlier turns of a conversation. The row "held out"
leaves out very short openings, since the training text may contain them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from rnn_engine import LLM, SamplingParams
from rnn_engine.demo import DEMO

LONGEST = 400  # characters of a sensible answer
SHORT = 3  # words; so short an opening has hardly any other wording, so the training text may contain it
_FILE = Path(__file__).with_suffix(".toml")
_NOT = "not "
_FLAGS = re.IGNORECASE | re.DOTALL
_MAX_TOKENS = 240


@dataclass(frozen=True, slots=True)
class Opening:
    """A conversation with a newcomer. Each pattern must match the last answer; with "not " before it, it must not."""

    category: str
    turns: tuple[str, ...]
    patterns: tuple[str, ...]

    @property
    def is_short(self) -> bool:
        """True if every turn has at most SHORT words. The training text may contain short openings."""
        return all(len(words(turn)) <= SHORT for turn in self.turns)

    def fault(self, answer: str) -> str | None:
        """Return why the patterns judge `answer` not sensible, or None if it is sensible."""
        if not answer.strip():
            return "empty"
        if len(answer) > LONGEST:
            return f"longer than {LONGEST} characters"
        for pattern in self.patterns:
            wanted = not pattern.startswith(_NOT)
            if bool(re.search(pattern.removeprefix(_NOT), answer, _FLAGS)) != wanted:
                return f"does not match {pattern}" if wanted else f"matches {pattern.removeprefix(_NOT)}"
        return None


def load_openings() -> list[Opening]:
    """Return the openings of openings.toml, in the order of the file."""
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    rubrics: dict[str, list[str]] = data["rubrics"]
    return [
        Opening(category, tuple(text.split(" | ")), tuple(rubrics.get(rubric, [rubric])))
        for category, items in data["openings"].items()
        for text, rubric in items.items()
    ]


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return re.findall(r"[^\W_]+", text.replace("'", "").lower())


def converse(llm: LLM, openings: Sequence[Opening], params: SamplingParams) -> list[list[str]]:
    """Send the turns of each opening one after another, and return the model's answers to each."""
    answers: list[list[str]] = [[] for _ in openings]
    for turn in range(max(len(opening.turns) for opening in openings)):
        places = [place for place, opening in enumerate(openings) if len(opening.turns) > turn]
        chats = [_messages(openings[place].turns[: turn + 1], answers[place]) for place in places]
        for place, answer in zip(places, llm.chat(chats, params, progress=False), strict=True):
            answers[place].append(answer.text.strip())
    return answers


def _messages(turns: Sequence[str], answers: Sequence[str]) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": turns[0]}]
    for answer, turn in zip(answers, turns[1:], strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
    return messages


def report(openings: Sequence[Opening], answers: Sequence[Sequence[str]]) -> str:
    """Return a report: the answers that are not sensible, and a table by category."""
    lines = []
    sensible: dict[Opening, bool] = {}
    for opening, turns in zip(openings, answers, strict=True):
        fault = opening.fault(turns[-1])
        sensible[opening] = fault is None
        if fault is not None:
            said = " | ".join(f"{turn} -> {answer!r}" for turn, answer in zip(opening.turns, turns, strict=True))
            lines.append(f"{opening.category}: {said}: {fault}")
    lines += ["", "| category | sensible | openings |", "|---|---|---|"]
    for category in dict.fromkeys(opening.category for opening in openings):
        lines.append(_row(category, [good for each, good in sensible.items() if each.category == category]))
    lines.append(_row("held out", [good for each, good in sensible.items() if not each.is_short]))
    lines.append(_row("all", list(sensible.values())))
    return "\n".join(lines)


def _row(name: str, sensible: Sequence[bool]) -> str:
    return f"| {name} | {100 * sum(sensible) / len(sensible):.1f} % | {len(sensible)} |"


@click.command()
@click.option("--model", default=DEMO, show_default=True, help="A model, as `rnn-engine serve` takes it.")
@click.option("--device", default="auto", show_default=True, help="As of `rnn-engine serve`.")
@click.option("--seed", type=int, help="Sample with the defaults from this seed.")
def main(model: str, device: str, seed: int | None) -> None:
    """Ask all openings, and print what is not sensible."""
    params = SamplingParams(seed=seed, max_tokens=_MAX_TOKENS, temperature=0.0 if seed is None else 1.0)
    openings = load_openings()
    with LLM(model, device=device) as llm:
        click.echo(report(openings, converse(llm, openings, params)))


if __name__ == "__main__":
    main()
