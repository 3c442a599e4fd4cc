"""`python -m tools.bench.training_torch`: the cost of a token of training in torch on the processor, in f32.

Compare it with `tools.bench.training`: a model of the same sizes (`tools.demo_model.model`, whose recurrence is
compiled C++), one text all of whose tokens count, frozen weights, and gradients of the initial state alone. The time is
that of all processors together. Run it with a Python that has the packages of tools/demo_model/requirements.txt.
"""

from __future__ import annotations

import time

import click
import torch

from tools.demo_model.model import Model, Sizes

_SIZES = Sizes(vocab=65536, width=768, layers=12, head=64, ffn=3072, rank=64, gate_rank=128)  # 0.1B
_REPEATS = 2


@click.command()
@click.option("--tokens", default=256, show_default=True, help="The length of the text.")
def main(tokens: int) -> None:
    """Measure a step of training and a prefill of a text of --tokens tokens."""
    torch.manual_seed(1)
    model = Model(_SIZES).eval().requires_grad_(requires_grad=False)
    ids = torch.randint(1, _SIZES.vocab, (1, tokens + 1))
    starts = torch.zeros(1, tokens, dtype=torch.uint8)
    starts[0, 0] = 1
    initial = model.initial_state().requires_grad_()
    optimizer = torch.optim.Adam([initial], lr=0.01)

    def prefill() -> None:
        with torch.no_grad():
            model.head(model.hidden(ids[:, :-1], starts, initial)[:, -1])

    def train() -> None:
        optimizer.zero_grad()
        logits = model.head(model.hidden(ids[:, :-1], starts, initial)[0])
        torch.nn.functional.cross_entropy(logits, ids[0, 1:]).backward()
        optimizer.step()

    for name, function in (("prefill", prefill), ("training", train)):
        function()
        seconds = []
        for _ in range(_REPEATS):
            begun = time.process_time()
            function()
            seconds.append(time.process_time() - begun)
        click.echo(f"{name}, ms a token: {1e3 * min(seconds) / tokens:.3g}")


if __name__ == "__main__":
    main()
