"""A published hard case: many prompts share a system text and the first half of a long part, which has moved.

Caches that keep states at borders of blocks alone lost nearly every hit when the shared part moved by 100 tokens.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rnn_engine.engine import Engine
from tools.bench.ask import Answer, ask
from tools.bench.prefix_cases import Draw

PROMPTS = 64
SYSTEM, SHIFT, SHARED, OWN = 230, 100, 700, 800  # tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """The hits of one arrival of all prompts, and the tokens that they saved."""

    arrival: str
    prompts: int
    hits: int
    saves_all_shared: int  # prompts of which everything was saved that they share with another
    tokens_saved: int
    tokens_run: int
    least_tokens: int  # that must be run: what is shared once, and each prompt's own


async def measure_shifted(engine: Engine, draw: Draw) -> list[Outcome]:
    """Ask prompts one by one and all at once, each with and without the shift; nothing is kept between."""
    outcomes = []
    for shift in (0, SHIFT):
        for at_once in (False, True):
            beginning = draw(SYSTEM + shift + SHARED)
            prompts = [[*beginning, *draw(OWN)] for _ in range(PROMPTS)]
            if at_once:
                answers = await asyncio.gather(*(ask(engine, prompt, max_tokens=1) for prompt in prompts))
            else:
                answers = [await ask(engine, prompt, max_tokens=1) for prompt in prompts]
            arrival = f"{'all at once' if at_once else 'one by one'}, shared part shifted by {shift}"
            outcomes.append(_outcome(arrival, len(beginning), answers))
            await engine.drop_cache()
    return outcomes


def _outcome(arrival: str, shared: int, answers: list[Answer]) -> Outcome:
    saved = [answer.cached_tokens for answer in answers]
    total = len(answers) * (shared + OWN)
    return Outcome(
        arrival,
        prompts=len(answers),
        hits=sum(count > 0 for count in saved),
        saves_all_shared=sum(count >= shared for count in saved),
        tokens_saved=sum(saved),
        tokens_run=total - sum(saved),
        least_tokens=shared + len(answers) * OWN,
    )
