"""Settings for loading a model, for the named states with which its engine starts, and for training a LoRA."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from rnn_engine.bounds import (
    AUTO,
    AUTO_FORMATS,
    DEFAULT_DRAFT,
    EXISTING_FOLDER,
    FLAG,
    FOLDER,
    FORMAT_NAMES,
    MAX_DRAFT,
    SIZE,
    STORED,
    Kind,
    Settings,
    part,
    setting,
)
from rnn_engine.errors import InvalidRequestError
from rnn_engine.hub import locate_model
from rnn_engine_states.named.quota import DEFAULT_CAPACITY, Quota

if TYPE_CHECKING:
    from rnn_engine.model import LoraChoice


MOST_RANK: Final = 512


def _parse_weights(text: str) -> str:
    from rnn_engine.forward import WeightChoice

    if text != AUTO:
        try:
            WeightChoice.parse(text)
        except InvalidRequestError as error:
            raise InvalidRequestError("weights", text, f"{AUTO}, or {error.allowed}") from None
    return text


def _parse_split(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", text):
        raise InvalidRequestError("split", text, "numbers of layers with commas between them, such as 20,12")
    return tuple(map(int, text.split(",")))


def _parse_lora(text: str) -> LoraChoice:
    from rnn_engine.model import LoraChoice

    return LoraChoice.parse(text)


def _parse_tune_seconds(text: str) -> float | None:
    if text == AUTO:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise InvalidRequestError("tune", text, "auto, or a number of seconds of at least 0")
    return seconds


@dataclass(frozen=True, slots=True)
class LoadSettings(Settings):
    """The settings for loading a model: its tokenizer, template and LoRAs, the device, weight format and drafting."""

    device: str = setting("auto", Kind(metavar="auto|INDEX|NAME|cpu|INDEX,INDEX...")).help(
        "auto, cpu (the processor), or the index or a part of the name of a device that `rnn-engine devices` lists. "
        "Among several, such as 0,1 or 0,cpu, the layers are divided."
    )
    tokenizer: str = setting("auto", Kind(metavar="auto|world|none|FILE")).help(
        "auto finds the tokenizer that fits the model; none takes only token ids; FILE is a tokenizer.json or a "
        "vocabulary."
    )
    chat_template: str = setting("auto", Kind(metavar="auto|world|FILE")).help(
        "How conversations become a prompt. auto takes the model's own template, else RWKV World's; FILE is a Jinja "
        "template, or JSON as the user guide describes it."
    )
    weights: str | None = setting(
        None, Kind(metavar="auto|FORMAT[,CLASS=FORMAT...][,layers=N][,activations=f32|int8]", parse=_parse_weights)
    ).help(
        f"The format of the matrices on the device: {', '.join((*FORMAT_NAMES, STORED))}. CLASS is att, ffn, first "
        "(the first layer), last (the last layer), head, emb or adapters. With layers=N, the layers from N on are f16. "
        "Example: int4,head=int8. With activations=int8, the inputs of matrices in int8 or q8_0 are rounded to bytes, "
        f"too. auto takes the first of {', '.join(AUTO_FORMATS)} that fits into the device's memory; for a quantised "
        f"file, {STORED} takes the place of {AUTO_FORMATS[0]}. On cpu, floats are f32, and blocks are multiplied "
        "with inputs in bytes unless activations=f32.  [default: f16, but stored for a quantised file; on cpu f32, but "
        "stored for a quantised file]"
    )
    split: Sequence[int] | None = setting(None, Kind(metavar="LAYERS,LAYERS...", parse=_parse_split)).help(
        "How many layers each of several devices gets.  [default: as many as fit]"
    )
    threads: int | None = setting(None, Kind(int, "N", low=1, high=1024)).help(
        "How many threads multiply matrices on cpu.  [default: the physical "
        "cores; a model of width 512 or less always has one]"
    )
    device_memory: int | None = setting(None, SIZE).help(
        "How much of the device's memory the model may take, such as 6G.  [default: this computer's free memory; for "
        "a discrete GPU it is unknown and not checked]"
    )
    v5_group_norm_epsilon: float | None = setting(
        None, Kind(float, "NUMBER", low=0, is_open=True), "--v5-group-norm-eps"
    ).help(
        "The epsilon of the group norm of an RWKV-5 that was trained with another one, such as 1e-5.  [default: 64e-5]"
    )
    loras: Sequence[LoraChoice] = setting((), Kind(metavar="FILE[:ALPHA]", parse=_parse_lora), "--lora").help(
        "A LoRA to merge into the weights: a file of ai00 or BlinkDL with its alpha, one of RWKV-PEFT (PiSSA, DiSHA, "
        "Bone), or a folder of PEFT."
    )
    max_loras: int = setting(0, Kind(int, "N", low=0, high=256)).help(
        "How many LoRAs that are not merged one step can use; a LoRA is given as a state: --state NAME=FILE[:ALPHA]."
    )
    max_lora_rank: int = setting(16, Kind(int, "RANK", low=1, high=MOST_RANK)).help(
        "The greatest rank of such a LoRA. Device memory for --max-loras of it is taken at the start."
    )
    tune_seconds: float | None = setting(  # 0 for programs; None is auto
        0.0, Kind(metavar="auto|SECONDS", parse=_parse_tune_seconds), "--tune", text=AUTO, env="RNN_ENGINE_TUNE"
    ).help(
        "How long the first load on a device may search for the fastest kernels; later loads use them, too. auto is "
        "10 seconds for a model of 64 MB or more on a GPU, and no search otherwise; 0 uses fixed kernels."
    )
    speculate: int = setting(DEFAULT_DRAFT, Kind(int, "TOKENS", low=0, high=MAX_DRAFT)).help(
        "The most tokens of a draft: a guess from earlier text, which a step checks at once if that is faster. The "
        "answers stay the same. 0 makes no drafts."
    )
    reranker: Path | None = setting(None, Kind(metavar="MODEL", parse=locate_model)).help(  # None: the demo's own
        "The reranker of the first model, which must be an embedding model: it ranks documents by the states after "
        "them."
    )


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file with a state to load when an engine starts, and the name and id that the state gets."""

    path: Path
    name: str | None = None  # None = the name in the file, or else the file's own name without its ending
    id: uuid.UUID | None = None  # None = the id in the file, or else one computed from its values

    @classmethod
    def parse(cls, text: str) -> StateFile:
        """Parse FILE or NAME=FILE. An existing file may have `=` in its name. Raises InvalidRequestError."""
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            return cls(Path(text))
        if not path:
            raise InvalidRequestError("state", text, "FILE or NAME=FILE")
        from rnn_engine_states.named.entry import check_new_name

        check_new_name(name, "NAME")
        return cls(Path(path), name)


@dataclass(frozen=True, slots=True)
class StateSettings(Settings):
    """The settings for an engine's named states: the files to load, the folders, and the limits on memory."""

    files: Sequence[StateFile] = setting((), Kind(metavar="[NAME=]FILE", parse=StateFile.parse), "--state").help(
        "Let requests start from the state in this file under this name, or else under the file's own."
    )
    default: str | None = setting(None, Kind(metavar="NAME"), "--default-state").help(
        "The state from which requests start that name no state; none is an empty state.  [default: the state in the "
        "model's file]"
    )
    folder: Path | None = setting(None, FOLDER, "--state-folder").help(
        "Keep persistent states in this folder over restarts, and let requests read state files from it."
    )
    file_folder: Path | None = setting(None, EXISTING_FOLDER, "--state-file-folder").help(
        "Let requests read state files from this folder instead of --state-folder."
    )
    capacity: int = setting(DEFAULT_CAPACITY, SIZE, "--state-bytes").help("The most memory that named states take.")
    quota: Quota = part(Quota)  # of one client, if the server distinguishes its clients
    any_model: bool = setting(False, FLAG, "--any-model-states").help(
        "Also take states whose files say that they were made for another model, if the sizes fit."
    )


_RANK: Final = Kind(int, low=1, high=MOST_RANK)
LoraInit: TypeAlias = Literal["lora", "pissa"]
_NAMES: Final = Kind(metavar="NAMES", parse=lambda text: tuple(text.split(",")), write=",".join)


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """The low-rank pairs that a run trains, B [out, rank] and A [rank, in] beside a matrix, scaled by alpha / rank."""

    rank: int = setting(16, _RANK).help("The rank of what is added to a matrix.")
    alpha: float = setting(32.0, Kind(float, "NUMBER", low=0, is_open=True)).help(
        "What is added to a matrix is scaled by alpha / rank."
    )
    targets: tuple[str, ...] = setting(("att", "ffn"), _NAMES).help(
        "The matrices that are changed: parts of every layer, or single matrices such as att.key,ffn.value."
    )
    init: LoraInit = setting("lora", Kind(choices=get_args(LoraInit))).help(
        "How training begins: lora with a random A and a B of zeros; pissa with the greatest singular values of each "
        "matrix, which the file then subtracts, in twice the rank."
    )
    train_state: bool = setting(False).help("Also train the initial state; FILE is a .state with both.")
    state_rate: float = setting(100.0, Kind(float, "NUMBER", low=0, is_open=True)).help(
        "With --train-state, how many times the learning rate is that of the state."
    )
    train_vectors: bool = setting(False).help(
        "Also train the vectors of the token shifts and the gates. FILE replaces the model's, so it can only be merged."
    )

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is out of range."""
        most = MOST_RANK if self.init == "lora" else MOST_RANK // 2
        if not 1 <= self.rank <= most:
            raise InvalidRequestError("rank", self.rank, f"a whole number from 1 to {most}")
        for name in ("alpha", "state_rate"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise InvalidRequestError(name, value, "a finite number greater than 0")
        if self.train_vectors and self.train_state:
            raise InvalidRequestError("train_vectors", True, "false with train_state: a .state has no vectors")

    @property
    def result(self) -> LoraSettings:
        """The settings of a plain LoRA with the rank and the alpha of the run's result."""
        return self if self.init == "lora" else replace(self, rank=2 * self.rank, alpha=2 * self.alpha, init="lora")
