"""`python -m tools.demo_model.evaluate`: measure the demo model on items that it was not trained on, by skill.

Answers are decoded greedily; an answer is right if it equals the expected one exactly. Skills without held-out items
are measured on any items. A choice between answers is made by the mean log-probability of their tokens. Some calls of
tools are measured as clients make them too: the tools are passed as JSON schemas, and the answer has `tool_calls`. With
--state FILE the pirate's figures are measured from that initial state.
"""

from __future__ import annotations

import json
import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rnn_engine import LLM, SamplingParams, State
from rnn_engine.demo import DEMO
from tools.demo_model.corpus.dialogue import Dialogue
from tools.demo_model.corpus.mixture import NOTHING_HELD_OUT, PIRATE_PREFIX, PIRATE_SUFFIX, SKILLS, held_out

EVALUATED = [skill for skill in SKILLS if skill not in ("story", "fun")]  # these have many right answers
CALL_SKILLS = ("tool_named", "new_tool", "write_file")
CHOICE_SKILLS = ("arithmetic", "fact", "memory")
GREEDY = SamplingParams(temperature=0.0, max_tokens=240)


@click.command()
@click.option("--model", default=DEMO, show_default=True, help="A model, as `rnn-engine serve` takes it.")
@click.option("--device", default="auto", show_default=True, help="As of `rnn-engine serve`.")
@click.option("--count", default=200, show_default=True, help="Items of each skill.")
@click.option("--state", type=click.Path(exists=True, path_type=Path), help="Measure the pirate of this state's file.")
def main(model: str, device: str, count: int, state: Path | None) -> None:
    """Print a table of how many answers are exactly right."""
    click.echo("| measured | exact | items |\n|---|---|---|")
    with LLM(model, device=device) as llm:
        if state is not None:
            for skill in EVALUATED:
                measure_pirate(llm, skill, count, llm.load_state(state))
            return
        for skill in EVALUATED:
            dialogues = items(skill, count)
            answers = answer_all(llm, dialogues)
            show(skill, [answer == dialogue.answer for answer, dialogue in zip(answers, dialogues, strict=True)])
        for skill in CALL_SKILLS:
            calls = [(_call(llm, dialogue), dialogue.answer) for dialogue in items(skill, count)]
            show(f"{skill}, as tool calls", [call == expected for call, expected in calls])
        for skill in CHOICE_SKILLS:
            dialogues = [each for each in held_out(skill, 2 * count) if len(each.wrong_answers) == 3]
            show(f"{skill}, four choices", [_chooses_right(llm, dialogue) for dialogue in dialogues[:count]])


def show(measured: str, right: Sequence[bool]) -> None:
    click.echo(f"| {measured} | {100 * sum(right) / len(right):.1f} % | {len(right)} |")


def items(skill: str, count: int) -> list[Dialogue]:
    """Return `count` held-out dialogues of a skill, or training dialogues if nothing is held out of it."""
    if skill not in NOTHING_HELD_OUT:
        return held_out(skill, count)
    rng = random.Random(skill)
    return [SKILLS[skill](rng, False) for _ in range(count)]


def measure_pirate(llm: LLM, skill: str, count: int, state: State) -> None:
    """Show the answers in a pirate's style, and those that are right apart from the style."""
    dialogues = items(skill, count)
    answers = answer_all(llm, dialogues, state)
    plain = [answer.removeprefix(PIRATE_PREFIX).removesuffix(PIRATE_SUFFIX) for answer in answers]
    framed = [answer.startswith(PIRATE_PREFIX) and answer.endswith(PIRATE_SUFFIX) for answer in answers]
    show(f"{skill}, speaks like a pirate", framed)
    show(f"{skill}, right all the same", [one == each.answer for one, each in zip(plain, dialogues, strict=True)])


def answer_all(llm: LLM, dialogues: Sequence[Dialogue], state: State | None = None) -> list[str]:
    """Return the model's answers to the last questions of dialogues."""
    chats = [dialogue.messages() for dialogue in dialogues]
    return [answer.text.strip() for answer in llm.chat(chats, GREEDY, state=state, progress=False)]


def _call(llm: LLM, dialogue: Dialogue) -> str | None:
    """Return the call that answers `dialogue` as JSON, or None if there is no whole call.

    The tools of the system text are passed as JSON schemas, with the arguments of the expected call as required.
    """
    assert dialogue.system is not None
    text, _, offered = dialogue.system.rpartition("Tools: ")
    required = json.loads(dialogue.answer)["arguments"]
    tools = []
    for name, listed in re.findall(r"([^\s,(]+)\(([^)]*)\)", offered):
        arguments = listed.split(", ")
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {argument: {} for argument in arguments},
            "required": [argument for argument in arguments if argument in required],
            "additionalProperties": False,
        }
        tools.append({"type": "function", "function": {"name": name, "parameters": schema}})
    messages = [{"role": "system", "content": text.strip()}] if text else []
    answer = llm.chat([*messages, *dialogue.messages()[1:]], GREEDY, tools=tools)
    if answer.finish_reason != "stop" or not answer.tool_calls:
        return None
    call = answer.tool_calls[0]
    return json.dumps({"name": call.name, "arguments": json.loads(call.arguments)})


def _chooses_right(llm: LLM, dialogue: Dialogue) -> bool:
    """Return True if the right one of four answers has the least perplexity."""
    options = [f" {answer}" for answer in (*dialogue.wrong_answers, dialogue.answer)]
    means = {
        choice.index: statistics.fmean(token.logprob or 0.0 for token in choice.score.given.tokens)
        for choice in llm.rank(dialogue.prompt, options)
    }
    return max(means, key=means.__getitem__) == len(options) - 1


if __name__ == "__main__":
    main()
