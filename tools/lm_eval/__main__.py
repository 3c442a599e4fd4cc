"""`python -m tools.lm_eval LM_EVAL --url URL`: compare lm-eval's scores with those of the server's /v1/choices.

    python -m venv /tmp/lm-eval && /tmp/lm-eval/bin/pip install "lm_eval[api]" transformers
    rnn-engine serve &
    python -m tools.lm_eval /tmp/lm-eval/bin/lm-eval

lm-eval sends prompts as token ids with `echo` and `logprobs`, and sums the log-probabilities itself. The tool sends the
same texts to /v1/choices. Exits with an error if a choice's log-likelihood or the accuracy differs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click
import httpx

from rnn_engine.demo import tokenizer_path
from tools.lm_eval.harness import Sample, run

TOLERANCE = 1e-4


@click.command()
@click.argument("lm_eval")
@click.option("--url", default="http://127.0.0.1:65530", show_default=True, help="A server with the demo model.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True),
    default=tokenizer_path(),
    help="The model's tokenizer.json.  [default: the demo model's]",
)
@click.option("--model-args", default="", help="Further model_args for lm-eval, such as num_concurrent=4.")
def main(lm_eval: str, url: str, tokenizer: Path, model_args: str) -> None:
    """LM_EVAL is the command of lm-eval's own environment."""
    with tempfile.TemporaryDirectory() as folder:
        found = run(lm_eval, url, tokenizer, Path(folder), model_args)
    differences, right = [], 0
    for sample in found.samples:
        totals = direct_totals(url, sample)
        differences += [abs(one - two) for one, two in zip(sample.loglikelihoods, totals, strict=True)]
        right += totals.index(max(totals)) == sample.label
    accuracy = right / len(found.samples)
    click.echo(
        f"{len(found.samples)} items, {len(differences)} choices; greatest difference of a log-likelihood "
        f"{max(differences):.2e}; accuracy {found.accuracy:.4f} by lm-eval, {accuracy:.4f} by /v1/choices"
    )
    if max(differences) > TOLERANCE or abs(found.accuracy - accuracy) > TOLERANCE:
        raise click.ClickException(f"expected no difference over {TOLERANCE}")


def direct_totals(url: str, sample: Sample) -> list[float]:
    """Return the log-probability of each of a sample's continuations in order, as /v1/choices computes them."""
    body: dict[str, Any] = {"input": sample.context, "choices": sample.continuations}
    reply = httpx.post(f"{url}/v1/choices", json=body, timeout=300).raise_for_status()
    entries = {entry["index"]: float(entry["total"]) for entry in reply.json()["data"]}
    return [entries[index] for index in range(len(entries))]


if __name__ == "__main__":
    main()
