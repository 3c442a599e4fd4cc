"""The figures of a load: TTFT, times between tokens, tokens per second, and the prompt tokens that the cache saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from tools.bench.load.client import Asked


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one load: latencies, speed and cache savings. Times are in milliseconds."""

    cache: bool
    load: str  # "closed" or "open"
    size: float  # clients of a closed load, conversations a second of an open one
    answers: int
    refused: int
    first_median: float
    first_95: float
    between_median: float  # of the answers' means, so that a piece of several tokens counts as these
    gap_99: float  # between two pieces of one answer
    tokens_per_second: float  # while questions were asked
    saved: float  # the cached share of the prompts' tokens


def summarise(asked: Asked, *, cache: bool, load: str, size: float, seconds: float) -> Figures:
    """Return the figures of a load that lasted `seconds`. There must be at least one answer."""
    answers = asked.answers
    firsts = [1e3 * answer.first for answer in answers]
    between = [
        1e3 * (answer.moments[-1] - answer.moments[0]) / (answer.tokens - 1) for answer in answers if answer.tokens > 1
    ]
    gaps = [1e3 * gap for answer in answers for gap in answer.gaps]
    # A piece may hold several tokens; an answer's tokens are taken to be spread evenly over its pieces.
    in_time = (
        answer.tokens * sum(moment < seconds for moment in answer.moments) / len(answer.moments) for answer in answers
    )
    return Figures(
        cache=cache,
        load=load,
        size=size,
        answers=len(answers),
        refused=asked.refused,
        first_median=_percentile(firsts, 50),
        first_95=_percentile(firsts, 95),
        between_median=_percentile(between, 50),
        gap_99=_percentile(gaps, 99),
        tokens_per_second=sum(in_time) / seconds,
        saved=sum(answer.cached_tokens for answer in answers) / sum(answer.prompt_tokens for answer in answers),
    )


def _percentile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def table(lines: Sequence[Figures]) -> str:
    """Return the figures of several loads as a Markdown table."""
    head = "load | cache | answers | refused | first token ms | 95 % | between tokens ms | longest gaps, 99 %"
    head += " | tokens/s | saved"
    rows = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    for line in lines:
        people = "client" if line.size == 1 else "clients"
        size = f"{line.size:g} {people}" if line.load == "closed" else f"{line.size:g} conversations/s"
        rows.append(
            f"| {size} | {'on' if line.cache else 'off'} | {line.answers} | {line.refused}"
            f" | {line.first_median:.0f} | {line.first_95:.0f} | {line.between_median:.1f} | {line.gap_99:.0f}"
            f" | {line.tokens_per_second:.0f} | {100 * line.saved:.0f} % |"
        )
    return "\n".join(rows)
