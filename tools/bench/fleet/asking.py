"""A process that sends the questions of a plan to a server over HTTP, and times the answers.

Reads a plan as JSON from stdin, and prints the result of `ask_all` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from tools.live_server.asking import Answer, ask, patient_session

_FIELDS = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}


@dataclass(frozen=True, slots=True)
class Question:
    after: float  # seconds after the previous answer, or after the beginning
    body: dict[str, Any]  # of the route for completions


async def ask_all(port: int, chains: list[list[Question]], seconds: float) -> list[Answer]:
    """Run the chains in parallel, with the questions of each in sequence, and return all answers.

    No question is sent later than `seconds` after the start. Raises RuntimeError if the server refuses a request or an
    answer breaks off.
    """
    answers: list[Answer] = []
    async with patient_session() as session:
        begun = time.perf_counter()

        async def run(chain: list[Question]) -> None:
            for question in chain:
                await asyncio.sleep(question.after)
                if time.perf_counter() - begun >= seconds:
                    return
                url = f"http://127.0.0.1:{port}/v1/completions"
                answer = await ask(session, url, {**question.body, **_FIELDS}, begun)
                if answer.error is not None:
                    raise RuntimeError(f"{answer.status}: {answer.error}")
                answers.append(answer)

        await asyncio.gather(*map(run, chains))
    return answers


def main() -> None:
    plan = json.load(sys.stdin)
    chains = [[Question(**question) for question in chain] for chain in plan["chains"]]
    answers = asyncio.run(ask_all(plan["port"], chains, plan["seconds"]))
    print(json.dumps([asdict(answer) for answer in answers]))


if __name__ == "__main__":
    main()
