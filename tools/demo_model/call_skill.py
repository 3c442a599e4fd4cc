"""A skill that the demo model does not have: it calls functions that no prompt describes, instead of answering.

    python -m tools.demo_model.call_skill data docs/state-tuning    # write calls.jsonl and calls-held-out.jsonl
    rnn-engine tune-state docs/state-tuning/calls.jsonl -o calls.safetensors --held-out 0.15 --steps 250 --rate 3
    python -m tools.demo_model.call_skill check docs/state-tuning/calls-held-out.jsonl calls.safetensors

"Multiply 21 by 52." becomes {"name": "times", "arguments": {"a": 21, "b": 52}}, and "half of 8" {"name": "half",
"arguments": {"a": 8}}. No single number and no pair of the held-out requests is asked in the training data. Runs do not
see them; only the number of updates was raised once, from 150 to 250, after 79 of them had been right.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from rnn_engine import LLM, ChatMessage, SamplingParams
from rnn_engine.chat_template import Role

SEED = 7
NUM_TRAINING, NUM_HELD_OUT = 200, 100
OF_TWO = {
    "plus": ("What is {0} + {1}?", "{0} plus {1}", "Add {0} and {1}."),
    "minus": ("What is {0} - {1}?", "{0} minus {1}", "What is {0} minus {1}?"),
    "times": ("What is {0} x {1}?", "{0} times {1}", "Multiply {0} by {1}."),
    "larger": ("Which is larger, {0} or {1}?", "Which number is bigger: {0} or {1}?", "the larger of {0} and {1}"),
}
OF_ONE = {
    "double": ("What is twice {0}?", "Double {0}.", "double of {0}"),
    "half": ("What is half of {0}?", "half of {0}", "Give me the half of {0}."),
    "next": ("What comes after {0}?", "the number after {0}", "Which number follows {0}?"),
}


def requests(rng: random.Random, held_out: bool, count: int) -> Iterator[tuple[str, str]]:
    """Yield requests with their calls, all different: the numbers of one of the two parts."""
    seen = set[str]()
    while len(seen) < count:
        kind = rng.choice([*OF_TWO, *OF_ONE])
        numbers = [rng.randrange(2, 100) for _ in range(2 if kind in OF_TWO else 1)]
        if (sum(numbers) % 4 == 0) != held_out:
            continue
        request = rng.choice({**OF_TWO, **OF_ONE}[kind]).format(*numbers)
        arguments = dict(zip("ab", numbers, strict=False))
        if request not in seen:
            seen.add(request)
            yield request, json.dumps({"name": kind, "arguments": arguments})


def write(path: Path, pairs: Iterator[tuple[str, str]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for request, call in pairs:
            messages = [{"role": "user", "content": request}, {"role": "assistant", "content": call}]
            file.write(json.dumps({"messages": messages}) + "\n")


def count_right(llm: LLM, pairs: Sequence[tuple[str, str]], state: Path | None) -> int:
    """Return how many requests the model answers with exactly the call."""
    loaded = None if state is None else llm.load_state(state)
    chats = [[ChatMessage(Role.USER, request)] for request, _ in pairs]
    answers = llm.chat(chats, SamplingParams(temperature=0.0, max_tokens=48), state=loaded)
    return sum(answer.text == call for answer, (_, call) in zip(answers, pairs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data")
    data.add_argument("folder", type=Path)
    check = commands.add_parser("check")
    check.add_argument("held_out", type=Path)
    check.add_argument("state", type=Path)
    check.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.command == "data":
        rng = random.Random(SEED)
        options.folder.mkdir(parents=True, exist_ok=True)
        write(options.folder / "calls.jsonl", requests(rng, False, NUM_TRAINING))
        write(options.folder / "calls-held-out.jsonl", requests(rng, True, NUM_HELD_OUT))
        return
    records = [json.loads(line)["messages"] for line in options.held_out.read_text("utf-8").splitlines()]
    pairs = [(asked["content"], answer["content"]) for asked, answer in records]
    with LLM(device=options.device) as llm:
        for name, state in (("without", None), ("with", options.state)):
            print(f"{name} the state: {count_right(llm, pairs, state)} of {len(pairs)} are right")


if __name__ == "__main__":
    main()
