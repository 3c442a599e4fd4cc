"""Options for commands that tune a state or a LoRA: the examples, the run and the state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rnn_engine.bounds import AUTO, FLAG, Kind, setting
from rnn_engine.errors import InvalidRequestError


def _parse_held_out(text: str) -> float | Path | None:
    if text == AUTO:
        return None
    try:
        share = float(text)
    except ValueError:
        return Path(text)
    if not 0 < share < 1:
        raise InvalidRequestError("held_out", text, "auto, a share between 0 and 1, or a file")
    return share


def _parse_rate(text: str) -> float | None:
    if text == AUTO:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise InvalidRequestError("rate", text, "auto, or a number greater than 0")
    return rate


_POSITIVE, _NOT_NEGATIVE = Kind(int, low=1), Kind(int, low=0)


@dataclass(frozen=True, slots=True)
class DataOptions:
    """The options of the examples: the held-out part, and what becomes of examples that can't be used."""

    held_out: float | Path | None = setting(
        None, Kind(metavar="auto|SHARE|FILE", parse=_parse_held_out), text=AUTO
    ).help(
        "The share of the examples, or a file with others, by which the state is judged and which it does not learn. "
        "auto is a twentieth, but at least 8 examples, or a fifth if that is fewer."
    )
    bad_lines: Literal["error", "skip"] = setting("error", Kind(choices=("error", "skip"))).help(
        "What becomes of lines that can't be used."
    )
    long_texts: Literal["error", "skip", "cut"] = setting("error", Kind(choices=("error", "skip", "cut"))).help(
        "What becomes of examples with more than --max-tokens tokens; cut learns from their beginning."
    )
    max_tokens: int = setting(1024, _POSITIVE).help(
        "The most tokens of an example, and of examples that run together. More take more memory."
    )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the run: the number of updates, and the settings of the training."""

    epochs: float | None = setting(None, Kind(float, "NUMBER", low=0, is_open=True)).help(
        "How many times every example is learnt.  [default: 3, and at least 100 updates]"
    )
    steps: int | None = setting(None, _POSITIVE).help("The number of updates, in place of --epochs.")
    batch_size: int = setting(8, _POSITIVE).help("Examples of an update.")
    rate: float | None = setting(None, Kind(metavar="auto|NUMBER", parse=_parse_rate), text=AUTO).help(
        "The learning rate; auto is the best of a short search."
    )
    warm_up: int = setting(10, _NOT_NEGATIVE).help("Updates in which the rate rises.")
    patience: int = setting(5, _NOT_NEGATIVE).help(
        "Stop after so many judgements without a better one, of 20 in a whole run; 0 never stops early. With fewer "
        "than 8 examples held out, a run never stops early."
    )
    max_documents: int = setting(16, _POSITIVE).help("The most examples that run together.")
    checkpoint_seconds: float = setting(60.0, Kind(float, "NUMBER", low=0)).help(
        "Write FILE.checkpoint at least so often."
    )
    seed: int = setting(0).help("Chooses the held-out part, the order, and the random numbers of a LoRA.")


@dataclass(frozen=True, slots=True)
class StateOptions:
    """The options of a state: that at the start, and what of it is trained."""

    init: Path | None = setting(None, Kind(Path, "FILE", exists=True)).help(
        "Start from the state in this file instead of an empty one."
    )
    init_prompt: str | None = setting(None, Kind(metavar="TEXT")).help(
        "Start from the state after the model has read this text."
    )
    any_model: bool = setting(False, FLAG, "--any-model-states").help(
        "Take --init, too, if its file says that it was made for another model."
    )
    train_shifts: bool = setting(False).help(
        "Also train the token shifts, which .st, .pth and .safetensors can't hold."
    )
