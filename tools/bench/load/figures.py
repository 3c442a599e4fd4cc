"""What a load comes to: times to the first token and between tokens, tokens per second, what the cache saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from tools.bench.load.client import Answered


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one load. Times are in milliseconds."""

    cache: bool
    load: str  # "closed" or "open"
    size: float  # clients of a closed load, conversations a second of an open one
    answers: int
    refused: int
    first_median: float
    first_95: float
    between_median: float
    between_95: float
    tokens_per_second: float  # of all answers
    saved: float  # the share of the prompts' tokens that the cache had


def summarise(answers: Sequence[Answered], *, cache: bool, load: str, size: float, refused: int) -> Figures:
    """Summarise at least two answers."""
    firsts = [1e3 * (answer.first - answer.asked) for answer in answers]
    between = [1e3 * (answer.ended - answer.first) / max(1, answer.tokens - 1) for answer in answers]
    seconds = max(answer.ended for answer in answers) - min(answer.asked for answer in answers)
    return Figures(
        cache=cache,
        load=load,
        size=size,
        answers=len(answers),
        refused=refused,
        first_median=_percentile(firsts, 50),
        first_95=_percentile(firsts, 95),
        between_median=_percentile(between, 50),
        between_95=_percentile(between, 95),
        tokens_per_second=sum(answer.tokens for answer in answers) / seconds,
        saved=sum(answer.cached_tokens for answer in answers) / sum(answer.prompt_tokens for answer in answers),
    )


def _percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def table(lines: Sequence[Figures]) -> str:
    """Return the figures as a table in Markdown."""
    head = "load | cache | answers | refused | first token ms | 95 % | between tokens ms | 95 % | tokens/s | saved"
    rows = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    for line in lines:
        size = f"{line.size:g} clients" if line.load == "closed" else f"{line.size:g} conversations/s"
        rows.append(
            f"| {size} | {'on' if line.cache else 'off'} | {line.answers} | {line.refused}"
            f" | {line.first_median:.0f} | {line.first_95:.0f} | {line.between_median:.1f} | {line.between_95:.1f}"
            f" | {line.tokens_per_second:.0f} | {100 * line.saved:.0f} % |"
        )
    return "\n".join(rows)
