"""Train the demo model on the generated corpus. A run can be resumed.

    python -m tools.demo_model.train --run build/demo-model --phase first --steps 4200
    python -m tools.demo_model.train --run build/demo-model --phase second --after 4200 --steps 6220
    python -m tools.demo_model.train --run build/demo-model --phase third --after 6220 --steps 12000

There are three phases: first a smaller model learns the skills that need the most examples; then its feed-forward
halves are widened, and it learns more skills; last it learns to call tools with names that it never saw. The learning
rate is constant after a warm-up, and falls to zero in the last steps of a phase. Each phase starts the optimisers anew.

The run's folder gets checkpoint.pt and loss.csv. Two threads share the micro-batches of a step and the optimisers, so
that a step is not held up if something else keeps one core busy.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tools.demo_model.batches import Rows, document, pack, plain_encoder
from tools.demo_model.corpus.mixture import FIRST_SHARES, SECOND_SHARES, SHARES, dialogues
from tools.demo_model.model import Model, Sizes

MUON_RATE, ADAM_RATE = 0.02, 0.003
LENGTH, MICRO_BATCHES = 384, 4  # a step is MICRO_BATCHES times [rows, LENGTH] tokens
WARM_UP = 60  # steps
_THREADS = 2
SAVE_SECONDS = 180
CHECKPOINT = "checkpoint.pt"  # the file of a run
GROUP = 20  # steps; their mean loss is a line of loss.csv


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the training: the shares of the skills, the model's feed-forward width, and the micro-batch's rows."""

    shares: Mapping[str, float]
    ffn: int
    rows: int
    rate: float = 1.0  # times the learning rates of the optimisers


PHASES: Mapping[str, Phase] = {
    "first": Phase(FIRST_SHARES, ffn=512, rows=2),
    "second": Phase(SECOND_SHARES, ffn=1024, rows=4),
    "third": Phase(SHARES, ffn=1024, rows=4, rate=0.5),
}


def rate_factor(step: int, steps: int, cooldown: int) -> float:
    """Return the part of the full rate at `step` of `steps`: it rises in the warm-up, and falls in the cooldown."""
    return min(1.0, (step + 1) / WARM_UP, (steps - step) / max(cooldown, 1))


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimisers of a model: Muon for the large matrices, AdamW for all other parameters.

    Each group has its full learning rate as `rate`. Their steps may be taken by several threads at once.
    """
    large: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_large = "blocks." in name and parameter.ndim == 2 and min(parameter.shape) > 64
        (large if is_large else rest).append(parameter)
    made: list[torch.optim.Optimizer] = [torch.optim.Muon(large, MUON_RATE, weight_decay=0.0)] if large else []
    made.append(torch.optim.AdamW(rest, ADAM_RATE, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0))
    for optimizer in made:
        for group in optimizer.param_groups:
            group["rate"] = group["lr"]
    return made


def set_progress(made: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Set the learning rate of every parameter group to `factor` times its full rate."""
    for optimizer in made:
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * factor


def step_batches(tokenizer: Tokenizer, step: int, phase: Phase) -> list[Rows]:
    """Return the micro-batches of a step. They depend on its number alone, so a resumed run sees the same data."""
    encode = plain_encoder(tokenizer)
    packed = pack((document(dialogue, encode) for dialogue in dialogues(step, phase.shares)), phase.rows, LENGTH)
    return [next(packed) for _ in range(MICRO_BATCHES)]


class Run:
    """The state of a training run: the model or models, their optimisers, and the number of steps done."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizers = optimizers(model)
        self.steps_done = 0

    def step(self, factor: float) -> float:
        """Take one optimiser step at `factor` times the full learning rate. Return the loss."""
        raise NotImplementedError

    def save(self, path: Path, **more: object) -> None:
        """Save a checkpoint so that the file is never half written."""
        part = path.with_suffix(".part")
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "steps_done": self.steps_done,
        }
        torch.save(state | more, part)
        part.replace(path)

    def resume(self, state: dict[str, Any]) -> None:
        """Load a checkpoint."""
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.steps_done = state["steps_done"]


class Trainer(Run):
    """A training run of the demo model."""

    model: Model

    def __init__(self, model: Model, tokenizer: Tokenizer, phase: Phase) -> None:
        super().__init__(model)
        self.tokenizer, self.phase = tokenizer, phase
        self.parameters = list(model.parameters())
        self.initial = model.initial_state()
        self.pool = ThreadPoolExecutor(_THREADS)

    def step(self, factor: float) -> float:
        """Take one optimiser step at `factor` times the full learning rate. Return the mean loss per learnt token."""
        batches = step_batches(self.tokenizer, self.steps_done, self.phase)
        total = sum(rows.num_learnt for rows in batches)
        results = list(self.pool.map(lambda rows: self._gradients(rows, total), batches))
        for index, parameter in enumerate(self.parameters):
            parameter.grad = sum(gradients[index] for _, gradients in results)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        set_progress(self.optimizers, factor * self.phase.rate)
        list(self.pool.map(lambda optimizer: optimizer.step(), self.optimizers))
        self.steps_done += 1
        return sum(loss for loss, _ in results)

    def _gradients(self, rows: Rows, total: int) -> tuple[float, tuple[Tensor, ...]]:
        loss = self.model.loss(rows, self.initial) / total
        return loss.item(), torch.autograd.grad(loss, self.parameters)

    def compile(self) -> None:
        """Compile the blocks, and run one batch so that they are compiled before several threads use them."""
        for block in self.model.blocks:
            block.compile(dynamic=False)
        self._gradients(step_batches(self.tokenizer, 0, self.phase)[0], 1)

    def save(self, path: Path, **more: object) -> None:
        super().save(path, sizes=asdict(self.model.sizes), **more)

    def start(self, weights: Mapping[str, Tensor], steps_done: int) -> None:
        """Start a phase after `steps_done` steps with these weights, which may be those of a narrower model."""
        self.steps_done = steps_done
        self.model.load_state_dict(widened(weights, self.model))


def widened(narrow: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """Return the weights `narrow` of a narrower model, widened to fit `model` so that both compute the same."""
    tensors = model.state_dict()
    for name, value in narrow.items():
        if name.endswith("ffn.value.weight"):
            tensors[name] = F.pad(
                value, (0, tensors[name].shape[1] - value.shape[1])
            )  # [D, F]: the new columns add nothing
        elif name.endswith("ffn.key.weight"):
            tensors[name] = torch.cat([value, tensors[name][value.shape[0] :]])  # [F, D]
        else:
            tensors[name] = value
    return tensors


def train(trainer: Run, run: Path, after: int, steps: int, cooldown: int) -> None:
    """Train up to step `steps`, saving every SAVE_SECONDS. `after` is the number of steps of earlier phases."""
    saved = time.monotonic()
    with (run / "loss.csv").open("a", newline="") as file:
        log = csv.writer(file)
        for losses in _in_groups(trainer, after, steps, cooldown):
            log.writerow([trainer.steps_done, f"{sum(losses) / len(losses):.5f}", f"{time.time():.0f}"])
            file.flush()
            if time.monotonic() - saved > SAVE_SECONDS:
                trainer.save(run / CHECKPOINT)
                saved = time.monotonic()
    trainer.save(run / CHECKPOINT)


def _in_groups(trainer: Run, after: int, steps: int, cooldown: int) -> Iterator[list[float]]:
    while trainer.steps_done < steps:
        count = min(GROUP, steps - trainer.steps_done)
        yield [trainer.step(rate_factor(trainer.steps_done - after, steps - after, cooldown)) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run, which must hold tokenizer.json")
    parser.add_argument("--steps", type=int, required=True, help="steps in all, including those before a resume")
    parser.add_argument("--phase", choices=PHASES, required=True)
    parser.add_argument("--after", type=int, default=0, help="steps of the phases before this one")
    parser.add_argument(
        "--cooldown", type=int, default=800, help="how many of the last steps lower the learning rate to zero"
    )
    options = parser.parse_args()
    checkpoint = options.run / CHECKPOINT
    saved = torch.load(checkpoint, weights_only=True) if checkpoint.exists() else None
    if saved is not None and saved["steps_done"] >= options.steps:
        print(f"the {options.phase} phase is done")
        return
    tokenizer = Tokenizer.from_file(str(options.run / "tokenizer.json"))
    torch.manual_seed(0)
    phase = PHASES[options.phase]
    sizes = Sizes(vocab=tokenizer.get_vocab_size(), ffn=phase.ffn)
    trainer = Trainer(Model(sizes), tokenizer, phase)
    if saved is not None and saved["steps_done"] > options.after:
        trainer.resume(saved)
    elif saved is not None:
        trainer.start(saved["model"], options.after)
    trainer.compile()
    train(trainer, options.run, options.after, options.steps, options.cooldown)


if __name__ == "__main__":
    main()
