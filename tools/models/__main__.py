"""Writes docs/models.md: versions, file formats and weight formats, against the reference in f64.

python -m tools.models [demo|skills|versions|files|speed]...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import numpy as np

from rnn_engine.demo import model_path
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.loading.runner import open_model
from rnn_engine.tokenizer import load_tokenizer
from tests.support.answers import right_answers
from tests.support.models import deep_embedded, random_model, tiny_shape
from tests.support.older_models import OLDER_SHAPES
from tests.support.quantised import quantised
from tests.support.reference import forward
from tools.demo_model.corpus.mixture import held_out
from tools.demo_model.evaluate import SKILLS as ANSWERED
from tools.models.files import file_rows
from tools.models.measure import load_on_device, measure, some_tokens, table
from tools.models.speed import LENGTH, SLOTS, speed_rows

_OUTPUT: Final = Path(__file__).parents[2] / "docs" / "models.md"
_SKILLS: Final = ("arithmetic", "fact", "memory", "spell", "json_fields")
_DEMO_LENGTH: Final = 256  # tokens
_IN_BYTES: Final = ("int8,activations=int8", "q8_0,activations=int8")
_VERSION_FORMATS: Final = ("f32", "f16", "int8", _IN_BYTES[0], "int4")
_MEASURED: Final = ["error", "KL", "matrices, MB"]
_INTRODUCTION: Final = """# Models and weight formats

Made by `python -m tools.models`, each part by its name (demo, skills, versions, files, speed) or all of them. Error is
the greatest difference of a logit from the numpy reference in f64 with the weights that were drawn, in parts of the
greatest logit; KL is the mean divergence, in nats, of the next token's distribution from the reference's. Below 8 bits
the head, the first layer and the last of three or more are int8, unless it is asked for otherwise. The weights of these
models are numbers that f16 holds, so f16 loses nothing here. Random models of width 64 lose more than trained and
larger ones.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the document."""

    title: str
    make: Callable[[], str]


def _demo() -> str:
    with open_model(model_path()) as model:
        tokenizer = load_tokenizer("auto", model_path(), model.shape.vocab_size)
        text = "".join(part for skill in _SKILLS for each in held_out(skill, 5) for part, _ in each.parts())
        tokens = list(tokenizer.encode(text))[:_DEMO_LENGTH]
        expected, _ = forward(model, tokens, dtype=np.float64)
        names = (*WEIGHT_FORMATS, *_IN_BYTES)
        rows = [["demo", name, *measure(model, tokens, name, expected)] for name in names]
    return table(["model", "weights", *_MEASURED], rows)


def _skills() -> str:
    """Return how many of 100 held-out items of each skill the demo model has right with each format's weights."""
    rows = []
    with open_model(model_path()) as model:
        tokenizer = load_tokenizer("auto", model_path(), model.shape.vocab_size)
        for name in WEIGHT_FORMATS:
            weights = quantised(model, WeightChoice.parse(name))
            rows.append([name, *(str(right_answers(weights, tokenizer, held_out(skill, 100))) for skill in ANSWERED)])
    return table(["weights", *ANSWERED], rows)


def _versions() -> str:
    rows = []
    small = tiny_shape()
    for shape in (*OLDER_SHAPES, small, deep_embedded(small)):
        model, tokens = random_model(shape, seed=1), some_tokens(shape)
        expected, _ = forward(model, tokens, dtype=np.float64)
        rows += [[shape.version, name, *measure(model, tokens, name, expected)] for name in _VERSION_FORMATS]
    return table(["version", "weights", *_MEASURED], rows)


def _files() -> str:
    header = ["version", "file", "its weights", "file, MB", "on the device", *_MEASURED]
    return (
        f"On {_device()}. Such models as above, but with a channel mix of 128 in RWKV-6 and a head of 64 in RWKV-7, "
        "written by `convert_model` and read back; those of transformers and rwkv.cpp, which are read alone, by the "
        "tests' writers. On the device they are what `--weights` makes of them by default. Formats that do not hold a "
        "version are left out.\n\n" + table(header, file_rows())
    )


def _speed() -> str:
    phases = ("decode, 1 slot", f"decode, {SLOTS} slots", f"prefill, {LENGTH} tokens")
    header = ["version", "weights", *(cell for phase in phases for cell in (f"{phase}, tokens/s", "to f16"))]
    return (
        f"On {_device()}, 2 cores. The formats of a version take turns in one run; medians of the rounds, and of "
        "their ratios to f16. These models are so small that a step is made of its dispatches rather than of weights "
        "that are read.\n\n" + table(header, speed_rows())
    )


def _device() -> str:
    with closing(load_on_device(random_model(tiny_shape(), seed=1), "f16")) as runner:
        return runner.device.info.name


SECTIONS: Final[Mapping[str, Section]] = {
    "demo": Section(f"The demo model, over {_DEMO_LENGTH} tokens of held-out dialogues", _demo),
    "skills": Section(
        "Skills of the demo model: right answers of 100 held-out items, greedily, in numpy with these weights", _skills
    ),
    "versions": Section(
        "Small models of every version with random f32 weights: 2 layers, width 64, over 64 tokens", _versions
    ),
    "files": Section("Small models as files of every format", _files),
    "speed": Section("Speed of random models with 4 layers, width 256 and a vocabulary of 2,048", _speed),
}


def _read_sections(text: str) -> dict[str, str]:
    """Return what is written under each title."""
    _, *parts = re.split(r"^## (.*)\n\n", text, flags=re.MULTILINE)
    return {title: body.rstrip("\n") + "\n" for title, body in zip(parts[::2], parts[1::2], strict=True)}


@click.command()
@click.argument("sections", nargs=-1, type=click.Choice(list(SECTIONS)))
def main(sections: tuple[str, ...]) -> None:
    """Measure SECTIONS, or all, on the first device and write them to docs/models.md; the others stay."""
    for name in sections or SECTIONS:
        body = SECTIONS[name].make()
        written = _read_sections(_OUTPUT.read_text()) | {SECTIONS[name].title: body}
        parts = (f"\n## {each.title}\n\n{written[each.title]}" for each in SECTIONS.values() if each.title in written)
        _OUTPUT.write_text(_INTRODUCTION + "".join(parts))


if __name__ == "__main__":
    main()
