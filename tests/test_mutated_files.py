"""Whatever became of a file, its reader reads it or raises an error of ours, in little memory.

MUTATIONS=5000 pytest tests/test_mutated_files.py tries so many of each kind.
"""

from __future__ import annotations

import os
import re
import tracemalloc
import uuid
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.demo import model_path
from rnn_engine.errors import RnnEngineError
from rnn_engine.loading.model import open_model
from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer
from states.files.full import Origin, SavedState, read_summary, save_full_state
from states.files.prefab import Prefab, encode_prefab
from states.payload import Payload
from states.tokens import pack
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.named_states import FINGERPRINT, SHAPE, make_registry, save_tuned_state, some_state
from tests.support.pth import save_pth
from tests.tokenizer.test_huggingface import byte_level_library

MUTATIONS = int(os.environ.get("MUTATIONS", "40"))
MOST_MEMORY = 32 << 20  # bytes; the largest of the files has some 0.1 MB

MODEL = random_model(tiny_shape(layers=1, width=16, vocab=4), seed=1)
TIME_STATES = TensorModel(SHAPE, {f"blocks.{n}.att.time_state": some_state()["wkv"][n] for n in range(2)})
INTEGERS = (0, 1, 65, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
NUMBERS = (b"0", b"-1", b"1.5", b"65", b"4294967296", b"9223372036854775808", b"1e309", b"1" * 5000, b"NaN", b"null")

Edit: TypeAlias = Callable[[bytearray], None]


def write_integer(place: int, value: int, width: int, order: Literal["little", "big"]) -> Edit:
    packed = (value % (1 << 8 * width)).to_bytes(width, order)

    def edit(data: bytearray) -> None:
        start = place % max(len(data), 1)
        data[start : start + width] = packed

    return edit


def splice(place: int, removed: int, added: bytes) -> Edit:
    def edit(data: bytearray) -> None:
        start = place % max(len(data), 1)
        data[start : start + removed] = added

    return edit


def cut(place: int) -> Edit:
    def edit(data: bytearray) -> None:
        del data[place % max(len(data), 1) :]

    return edit


def flip(place: int, bit: int) -> Edit:
    def edit(data: bytearray) -> None:
        if data:
            data[place % len(data)] ^= 1 << bit

    return edit


def write_number(index: int, number: bytes) -> Edit:
    """Replace one of the numbers that stand there in digits."""

    def edit(data: bytearray) -> None:
        found = list(re.finditer(rb"-?[0-9]+", data[:4000]))
        if found:
            match = found[index % len(found)]
            data[match.start() : match.end()] = number

    return edit


ORDERS: st.SearchStrategy[Literal["little", "big"]] = st.sampled_from(("little", "big"))
PLACES = st.integers(0, 600) | st.integers(-600, -1) | st.integers(0, 1 << 20)
EDITS = st.one_of(
    st.builds(flip, PLACES, st.integers(0, 7)),
    st.builds(write_integer, PLACES, st.sampled_from(INTEGERS), st.sampled_from((1, 2, 4, 8)), ORDERS),
    st.builds(write_number, st.integers(0, 100), st.sampled_from(NUMBERS)),
    st.builds(splice, PLACES, st.integers(0, 40), st.binary(max_size=40)),
    st.builds(cut, PLACES),
)


def full(path: Path) -> None:
    origin = Origin(FINGERPRINT, "none", 3, "prompt_end", "name", (1, 2, 3))
    logits = np.ones(SHAPE.vocab_size, np.float32)
    save_full_state(path, SavedState(origin, pack([1, 2, 3]), Payload(some_state(), logits)), "v7")


def prefab(path: Path) -> None:
    path.write_bytes(encode_prefab(Prefab("name", uuid.UUID(int=7), True, some_state()), SHAPE))


def read_as_state(path: Path) -> None:
    files = make_registry().files
    loaded = files.read(path)
    files.freeze(loaded, "file")
    read_summary(path, None) if loaded.form == "full" else None


def read_as_model(path: Path) -> None:
    with open_model(path) as opened:
        assert opened.fingerprint
        for name in opened.names:
            opened.tensor(name)


def read_as_tokenizer(path: Path) -> None:
    tokenizer = HuggingFaceTokenizer(path)
    for token in tokenizer.encode("the naïve quick fox"):
        tokenizer.decode_bytes(token)


@dataclass(frozen=True)
class Kind:
    """A kind of file: how a sound one is written, and what reads it."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], None]


KINDS = (
    Kind("full state", full, read_as_state),
    Kind("tuned state", lambda path: save_tuned_state(path, some_state(), SHAPE), read_as_state),
    Kind("tuned .pth", lambda path: save_pth(TIME_STATES, path), read_as_state),
    Kind("deflated .pth", lambda path: save_pth(TIME_STATES, path, compression=zipfile.ZIP_DEFLATED), read_as_state),
    Kind("prefab state", prefab, read_as_state),
    Kind("model", lambda path: save_safetensors(MODEL, path), read_as_model),
    Kind("model .pth", lambda path: save_pth(MODEL, path), read_as_model),
    Kind("deflated model", lambda path: save_pth(MODEL, path, compression=zipfile.ZIP_DEFLATED), read_as_model),
    Kind("byte-level tokenizer", lambda path: byte_level_library().save(str(path)), read_as_tokenizer),
    Kind(
        "demo tokenizer",
        lambda path: path.write_bytes(model_path().with_name("tokenizer.json").read_bytes()),
        read_as_tokenizer,
    ),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_mutated_file_is_read_or_refused(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "file"
    kind.write(path)
    kind.read(path)
    sound = path.read_bytes()

    @settings(max_examples=MUTATIONS)
    @given(st.lists(EDITS, min_size=1, max_size=3))
    def try_edits(edits: list[Edit]) -> None:
        data = bytearray(sound)
        for edit in edits:
            edit(data)
        path.write_bytes(data)
        with suppress(RnnEngineError):
            kind.read(path)

    tracemalloc.start()
    try:
        try_edits()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY
