"""Small files that unpack to large data are refused before they take memory, by one of the project's errors."""

from __future__ import annotations

import io
import tempfile
import tracemalloc
import zipfile
from collections.abc import Sequence
from pathlib import Path

import cbor2
import numpy as np
import pytest

from rnn_engine.errors import StateError
from rnn_engine_states.files.full import Origin, SavedState
from rnn_engine_states.frozen import Payload
from tests.support import pth
from tests.support.named_states import FINGERPRINT, SHAPE, make_states, save_full_state, some_state

MEGABYTE = 1 << 20
NAMES = [f"blocks.{layer}.att.time_state" for layer in range(SHAPE.num_layers)]
WKV = (2, 4, 4)
STRIDES = (16, 4, 1)


def bomb(path: Path, tensors: dict[str, bytes], storage_megabytes: int) -> bytes:
    """Return a deflated .pth file whose single storage is all zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", pth.program(pth.dict_of(tensors)))
        with archive.open("archive/data/0", "w", force_zip64=True) as entry:
            for _ in range(storage_megabytes):
                entry.write(bytes(MEGABYTE))
    return path.read_bytes()


def refusal(data: bytes, most: int = 8 * MEGABYTE) -> str:
    """Return the reason why an upload is refused. Refusing may take only a few megabytes besides the upload."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upload"
        path.write_bytes(data)
        return refusal_of_file(path, most)


def refusal_of_file(path: Path, most: int = 8 * MEGABYTE) -> str:
    files = make_states().files
    tracemalloc.start()
    try:
        with pytest.raises(StateError) as caught:
            files.read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def tensor(offset: int, shape: Sequence[int], strides: Sequence[int], count: int = 1 << 40) -> bytes:
    return pth.tensor(pth.storage("0", "float32", count), offset, shape, strides)


def test_a_storage_that_holds_far_more_than_its_tensors(tmp_path: Path) -> None:
    """To read the tensors at its end, everything before would have to be inflated, once for each tensor."""
    end = 64 * MEGABYTE // 4 - 64
    data = bomb(tmp_path / "bomb", {name: tensor(end, WKV, STRIDES) for name in NAMES}, 64)
    assert len(data) < MEGABYTE
    assert "ends at byte 67108736 of a compressed storage; expected at most 768 there" in refusal(data)


def test_a_tensor_as_large_as_its_storage(tmp_path: Path) -> None:
    whole = (64 * MEGABYTE // 4,)
    data = bomb(tmp_path / "bomb", {name: tensor(0, whole, (1,)) for name in NAMES}, 64)
    assert "has shape [16777216]; this model needs [2, 4, 4]" in refusal(data)


def test_a_pickle_of_many_small_values() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"]" * ((1 << 20) - 8) + b".")
    assert "the pickle has" in refusal(content.getvalue(), most=40 * MEGABYTE)


def test_hundreds_of_tensors_on_one_storage(tmp_path: Path) -> None:
    whole = (64 * MEGABYTE // 4,)
    many = {f"blocks.{layer}.att.time_state": tensor(0, whole, (1,)) for layer in range(500)}
    assert "has time_state for layers 0 to 499" in refusal(bomb(tmp_path / "bomb", many, 64))


@pytest.mark.parametrize("shape", [(0, 1 << 63), (1 << 62, 0, 1 << 62), (1,) * 9])
def test_shapes_that_no_array_can_have(tmp_path: Path, shape: tuple[int, ...]) -> None:
    described = {name: tensor(0, shape, (1,) * len(shape)) for name in NAMES}
    refusal(bomb(tmp_path / "bomb", described, 1))


def test_a_zip_with_a_long_directory(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for number in range(60_000):
            archive.writestr(f"{number:040}", b"")
    assert "damaged or truncated zip file: reading it takes more bytes than are allowed" in refusal(content.getvalue())


def test_a_safetensors_file_with_a_long_header() -> None:
    header = b"{" + b",".join(b'"%d":{}' % number for number in range(200_000)) + b"}"
    assert "expected a whole header of at most 1048576" in refusal(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize(
    "value",
    [
        {"shape": [1 << 63, 6, 2, 1], "data": b""},
        {"shape": [1 << 20_000, 6, 2, 1], "data": b""},
        {"shape": [8, 6, 2, 1], "data": [0] * 100},
        {"shape": [[[]]], "data": b""},
    ],
)
def test_prefab_states_of_other_numbers(value: object) -> None:
    refusal(cbor2.dumps({"name": "n", "id": bytes(16), "default": False, "data": value}))


@pytest.mark.parametrize("item", [b"\x80", b"\x81", b"\x9f", b"\xa0", b"\xf7", b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff"])
def test_cbor_of_many_small_values(item: bytes) -> None:
    content = b"\xa1\x61a" + b"\x99\xff\xff" + item * 60_000
    assert "upload: " in refusal(content)


def test_a_state_after_very_many_tokens_takes_little_more_than_its_file(tmp_path: Path) -> None:
    num_tokens = 2 * MEGABYTE
    tokens = np.ones(num_tokens, np.uint32).tobytes()
    origin = Origin(FINGERPRINT, "none", num_tokens, "named", "long")
    path = tmp_path / "long.state"
    save_full_state(path, SavedState(origin, tokens, Payload(some_state(), None)))
    files = make_states().files
    tracemalloc.start()
    try:
        loaded = files.read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (loaded.num_tokens, loaded.last_tokens) == (num_tokens, (1,) * 32)
    assert peak < 3 * path.stat().st_size
