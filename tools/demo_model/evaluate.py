"""Measure the demo model on items that it was not trained on, through a server, and print a table by skill.

    python -m tools.demo_model.evaluate [MODEL]
    python -m tools.demo_model.evaluate --url http://127.0.0.1:65530

Answers are decoded greedily over /v1/chat/completions; an answer is right if it equals the expected one exactly. Skills
without held-out items are measured on any items. A choice between answers is made by perplexity, from the
log-probabilities of /v1/completions. Some calls of tools are measured as clients make them too: the tools are sent as
JSON schemas, and the answer has `tool_calls`. With --state NAME the pirate's figures are measured from that initial
state, for five skills or, with --every-skill, for all.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rnn_engine.demo import model_path
from tools.demo_model.corpus.dialogue import Dialogue
from tools.demo_model.corpus.mixture import NOTHING_HELD_OUT, PIRATE_PREFIX, PIRATE_SUFFIX, SKILLS, held_out
from tools.live_server.process import ServerProcess

EVALUATED = [skill for skill in SKILLS if skill not in ("story", "fun")]  # these have many right answers
JSON_SKILLS = frozenset(
    {"json_fields", "json_given", "json_schema", "tool_call", "tool_named", "tool_again", "new_tool", "write_file"}
)
CALL_SKILLS = ("tool_named", "new_tool", "write_file")
CHOICE_SKILLS = ("arithmetic", "fact", "memory")
PIRATE_SKILLS = ("arithmetic", "spell", "fact", "memory", "unknown")
CLIENTS = 8
GREEDY: Mapping[str, Any] = {"model": "demo", "temperature": 0, "presence_penalty": 0, "frequency_penalty": 0}
MAX_TOKENS = 240
HEAD = "| measured | exact | items |\n|---|---|---|"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: what was measured, and how many answers of how many were right."""

    measured: str
    right: int
    of: int

    def __str__(self) -> str:
        return f"| {self.measured} | {100 * self.right / self.of:.1f} % | {self.of} |"


class Server:
    """A client of the server's routes that the evaluation needs.

    With a `seed`, answers are sampled with the server's defaults in place of greedy decoding.
    """

    def __init__(self, url: str, state: str | None = None, *, seed: int | None = None) -> None:
        self._url = url.rstrip("/")
        self._extra = {} if state is None else {"state": state}
        self._sampling = GREEDY if seed is None else {"model": GREEDY["model"], "seed": seed}

    def answer(self, dialogue: Dialogue) -> str:
        """Return the model's answer to the last question of `dialogue`."""
        return self.chat(dialogue.messages())

    def chat(self, messages: list[dict[str, str]]) -> str:
        """Return the model's next message in the conversation `messages`."""
        reply = self._post("/v1/chat/completions", {"messages": messages, "max_tokens": MAX_TOKENS, **self._sampling})
        return str(reply["choices"][0]["message"]["content"]).strip()

    def call(self, dialogue: Dialogue) -> str | None:
        """Return the call that answers `dialogue` as JSON, or None if there is no whole call.

        The tools of the system text are sent as JSON schemas, with the arguments of the expected call as required.
        """
        assert dialogue.system is not None
        text, _, offered = dialogue.system.rpartition("Tools: ")
        expected = json.loads(dialogue.answer)["arguments"]
        tools = [
            _function(name, arguments.split(", "), expected)
            for name, arguments in re.findall(r"([^\s,(]+)\(([^)]*)\)", offered)
        ]
        messages = [{"role": "system", "content": text.strip()}] if text else []
        messages += dialogue.messages()[1:]
        body = {"messages": messages, "tools": tools, "max_tokens": MAX_TOKENS, **self._sampling}
        [choice] = self._post("/v1/chat/completions", body)["choices"]
        if choice["finish_reason"] != "tool_calls":
            return None
        function = choice["message"]["tool_calls"][0]["function"]
        return json.dumps({"name": function["name"], "arguments": json.loads(function["arguments"])})

    def best_choice(self, prompt: str, choices: Sequence[str]) -> int:
        """Return the index of the choice with the least perplexity after `prompt`."""
        body = {"model": "demo", "prompt": [prompt + choice for choice in choices], "echo": True}
        reply = self._post("/v1/completions", body | {"max_tokens": 0, "logprobs": 0})
        means = {choice["index"]: _mean_from(len(prompt), choice["logprobs"]) for choice in reply["choices"]}
        return max(means, key=means.__getitem__)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = httpx.post(self._url + path, json=body | self._extra, timeout=300)
        if reply.is_error:
            raise SystemExit(f"{path}: {reply.status_code} {reply.text}")
        return dict(reply.json())


def _function(name: str, arguments: Sequence[str], required: Collection[str]) -> dict[str, Any]:
    """Return a function tool for a request. Its arguments may have any value; those in `required` must be given."""
    schema = {
        "type": "object",
        "properties": {argument: {} for argument in arguments},
        "required": [argument for argument in arguments if argument in required],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def _mean_from(start: int, logprobs: dict[str, Any]) -> float:
    """Return the mean log-probability of the tokens from character `start` of the text on."""
    pairs = zip(logprobs["text_offset"], logprobs["token_logprobs"], strict=True)
    return statistics.fmean(logprob for offset, logprob in pairs if offset >= start)


@contextmanager
def serving(options: argparse.Namespace) -> Iterator[str]:
    """Yield the URL of `options.url`, or of a server that is started for `options.model` if there is none."""
    if options.url is not None:
        yield options.url
    else:
        with ServerProcess((f"demo={options.model}",)) as server:
            yield server.url


def model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `serving` reads."""
    parser.add_argument("model", type=Path, nargs="?", default=model_path(), help="a model file")
    parser.add_argument("--url", help="a server's root, which is asked instead")


def items(skill: str, count: int) -> list[Dialogue]:
    """Return `count` held-out dialogues of a skill, or training dialogues if nothing is held out of it."""
    if skill not in NOTHING_HELD_OUT:
        return held_out(skill, count)
    rng = random.Random(skill)
    return [SKILLS[skill](rng, False) for _ in range(count)]


def is_json(text: str) -> bool:
    """Return True if a text is one JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def skill_figures(server: Server, skill: str, count: int) -> list[Figure]:
    """Measure a skill: count the exactly right answers and, for JSON skills, the valid JSON objects."""
    dialogues = items(skill, count)
    answers = _answers(server, dialogues)
    right = sum(answer == dialogue.answer for answer, dialogue in zip(answers, dialogues, strict=True))
    figures = [Figure(skill, right, count)]
    if skill in JSON_SKILLS:
        figures.append(Figure(f"{skill}, valid JSON", sum(map(is_json, answers)), count))
    return figures


def call_figure(server: Server, skill: str, count: int) -> Figure:
    """Measure a skill of one tool call, over the parameters of the API: count the exactly right calls."""
    dialogues = items(skill, count)
    with ThreadPoolExecutor(CLIENTS) as pool:
        calls = list(pool.map(server.call, dialogues))
    right = sum(call == dialogue.answer for call, dialogue in zip(calls, dialogues, strict=True))
    return Figure(f"{skill}, as tool calls", right, count)


def choice_figure(server: Server, skill: str, count: int) -> Figure:
    """Measure a skill by multiple choice: count how often the right one of four answers has the least perplexity."""
    dialogues = [dialogue for dialogue in held_out(skill, 2 * count) if len(dialogue.wrong_answers) == 3][:count]

    def right(dialogue: Dialogue) -> bool:
        options = [f" {answer}" for answer in (*dialogue.wrong_answers, dialogue.answer)]
        return server.best_choice(dialogue.prompt, options) == 3

    with ThreadPoolExecutor(CLIENTS) as pool:
        return Figure(f"{skill}, four choices", sum(pool.map(right, dialogues)), len(dialogues))


def pirate_figures(server: Server, skill: str, count: int) -> list[Figure]:
    """Count the answers of a skill in a pirate's style, and those that are right apart from the style."""
    dialogues = items(skill, count)
    answers = _answers(server, dialogues)
    styled = [answer.startswith(PIRATE_PREFIX) and answer.endswith(PIRATE_SUFFIX) for answer in answers]
    right = [
        answer.removeprefix(PIRATE_PREFIX).removesuffix(PIRATE_SUFFIX) == dialogue.answer
        for answer, dialogue in zip(answers, dialogues, strict=True)
    ]
    return [
        Figure(f"{skill}, speaks like a pirate", sum(styled), count),
        Figure(f"{skill}, right all the same", sum(right), count),
    ]


def _answers(server: Server, dialogues: Sequence[Dialogue]) -> list[str]:
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(server.answer, dialogues))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model_arguments(parser)
    parser.add_argument("--count", type=int, default=200, help="items of each skill")
    parser.add_argument("--state", help="measure only the skills of the pirate, from the initial state of this name")
    parser.add_argument("--every-skill", action="store_true", help="with --state, measure all skills as a pirate")
    options = parser.parse_args()
    with serving(options) as url:
        server = Server(url, options.state)
        print(HEAD, flush=True)
        if options.state is not None:
            for skill in EVALUATED if options.every_skill else PIRATE_SKILLS:
                print(*pirate_figures(server, skill, options.count), sep="\n", flush=True)
            return
        for skill in EVALUATED:
            print(*skill_figures(server, skill, options.count), sep="\n", flush=True)
        for skill in CALL_SKILLS:
            print(call_figure(server, skill, options.count), flush=True)
        for skill in CHOICE_SKILLS:
            print(choice_figure(server, skill, options.count), flush=True)


if __name__ == "__main__":
    main()
