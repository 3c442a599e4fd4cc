"""The contents besides plain tensors that torch may write into a .pth file, and those that make it unreadable."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from tests.support import pth
from tests.support.models import random_model, tiny_shape

MODEL = random_model(tiny_shape(width=32), seed=1)
ARRAYS = pth.cast(MODEL, "f32")
KEYS = {name: str(number) for number, name in enumerate(ARRAYS)}
DATA = {KEYS[name]: values.tobytes() for name, values in ARRAYS.items()}
NAME = "blocks.0.ffn.key.weight"
LARGE = ARRAYS[NAME]  # [F, D]


def entries() -> dict[str, bytes]:
    return {name: pth.array(KEYS[name], values) for name, values in ARRAYS.items()}


def window(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> dict[str, bytes]:
    """Return the model's entries, with the large one as another window on its storage."""
    storage = pth.storage(KEYS[NAME], "float32", LARGE.size)
    return entries() | {NAME: pth.tensor(storage, offset, shape, strides)}


def write(
    tmp_path: Path,
    described: Mapping[str, bytes],
    data: Mapping[str, bytes] = DATA,
    *,
    compression: int = zipfile.ZIP_STORED,
    byte_order: str = "little",
) -> Path:
    pickled = pth.program(pth.dict_of(described))
    path = tmp_path / "model.pth"
    return pth.write_pth(path, pickled, data, compression=compression, byte_order=byte_order)


def read(path: Path) -> NDArray[Any]:
    with open_model(path) as opened:
        return opened.tensor(NAME)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read(path)
    return str(caught.value)


def test_parameters(tmp_path: Path) -> None:
    described = {name: pth.parameter(value) for name, value in entries().items()}
    np.testing.assert_array_equal(read(write(tmp_path, described)), LARGE)


def test_a_checkpoint_of_a_trainer(tmp_path: Path) -> None:
    nested = {"epoch": pth.integer(3), "state_dict": pth.dict_of(entries())}
    np.testing.assert_array_equal(read(write(tmp_path, nested)), LARGE)


def test_metadata_of_a_module_is_passed_over(tmp_path: Path) -> None:
    metadata = b"}" + pth.text("_metadata") + pth.dict_of({"": pth.dict_of({"version": pth.integer(1)})}) + b"s"
    pickled = pth.program(pth.dict_of(entries()) + metadata + b"b")
    np.testing.assert_array_equal(read(pth.write_pth(tmp_path / "model.pth", pickled, DATA)), LARGE)


def test_a_later_pickle_protocol(tmp_path: Path) -> None:
    def modern(module: str, attribute: str) -> bytes:
        return b"\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(attribute)]) + attribute.encode()

    pickled = pth.program(pth.dict_of(entries()))
    for module, attribute in (("collections", "OrderedDict"), ("torch._utils", "_rebuild_tensor_v2")):
        pickled = pickled.replace(pth.name(module, attribute), modern(module, attribute) + b"\x93")
    np.testing.assert_array_equal(read(pth.write_pth(tmp_path / "model.pth", pickled, DATA)), LARGE)


def test_transposed_tensor(tmp_path: Path) -> None:
    rows, columns = LARGE.shape
    data = DATA | {KEYS[NAME]: np.ascontiguousarray(LARGE.T).tobytes()}
    np.testing.assert_array_equal(read(write(tmp_path, window(0, (rows, columns), (1, rows)), data)), LARGE)


def test_slice_of_a_larger_storage(tmp_path: Path) -> None:
    rows, columns = LARGE.shape
    table = np.zeros((rows + 9, columns + 2), np.float32)
    table[7 : 7 + rows, :columns] = LARGE
    described = window(7 * (columns + 2), (rows, columns), (columns + 2, 1))
    np.testing.assert_array_equal(read(write(tmp_path, described, DATA | {KEYS[NAME]: table.tobytes()})), LARGE)


def test_a_stride_that_is_never_taken_may_be_of_any_size(tmp_path: Path) -> None:
    described = window(0, (1, *LARGE.shape), (1 << 62, LARGE.shape[1], 1))
    np.testing.assert_array_equal(read(write(tmp_path, described)), LARGE)


def test_tensors_that_share_a_storage(tmp_path: Path) -> None:
    head, embedding = KEYS["head.weight"], ARRAYS["emb.weight"]
    described = entries() | {"head.weight": pth.array(KEYS["emb.weight"], embedding)}
    data = {key: values for key, values in DATA.items() if key != head}
    with open_model(write(tmp_path, described, data)) as opened:
        np.testing.assert_array_equal(opened.tensor("head.weight"), embedding)


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (1, (128, 32), (32, 1)),  # ends beyond the storage
        (0, (129, 32), (32, 1)),
        (0, (128, 32), (33, 1)),
        (4096, (1, 1), (1, 1)),  # begins beyond it
        (0, (1 << 30, 1 << 30), (0, 0)),  # more elements than it has, all of them the same
    ],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_window_beyond_the_storage(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...], compression: int, tmp_path: Path
) -> None:
    message = refusal(write(tmp_path, window(offset, shape, strides), compression=compression))
    assert f"tensor {NAME} of shape {list(shape)} is not inside its storage of 4096 elements" in message


def test_negative_sizes_are_refused(tmp_path: Path) -> None:
    assert "no storage, offset, shape and strides" in refusal(write(tmp_path, window(64, (128, 32), (32, -1))))
    assert "no storage, offset, shape and strides" in refusal(write(tmp_path, window(-1, (128, 32), (32, 1))))


def test_shape_and_strides_of_different_length_are_refused(tmp_path: Path) -> None:
    assert "2 dimensions by 1 strides" in refusal(write(tmp_path, window(0, (128, 32), (1,))))


def test_missing_data_is_named(tmp_path: Path) -> None:
    data = {key: values for key, values in DATA.items() if key != KEYS[NAME]}
    assert f"the data of tensor {NAME} is missing" in refusal(write(tmp_path, entries(), data))


def test_big_endian_file_is_refused(tmp_path: Path) -> None:
    assert "has the byte order b'big'; expected b'little'" in refusal(write(tmp_path, entries(), byte_order="big"))


def test_a_file_without_checksums_is_read(tmp_path: Path) -> None:
    """As torch writes it after `torch.serialization.set_crc32_options(False)`."""
    path = write(tmp_path, entries())
    without = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            for _ in range(2):  # in the entry's own header and in the directory
                place = without.index(entry.CRC.to_bytes(4, "little"))
                without[place : place + 4] = bytes(4)
    path.write_bytes(without)
    assert np.array_equal(read(path), LARGE)


def test_a_pickle_that_does_not_match_its_checksum_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, entries())
    path.write_bytes(path.read_bytes().replace(b"ffn.key", b"ffn.kez", 1))
    assert refusal(path).startswith(f"{path}: the zip's entry archive/data.pkl can't be read: Bad CRC-32")


def test_two_pickles_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, entries())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other/data.pkl", b"")
    assert "is a zip with 2 entries named data.pkl" in refusal(path)


def test_an_oversized_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(5 << 20))
    assert "has a pickle of 5242880 bytes; expected at most 1048576" in refusal(path)


def test_an_encrypted_storage_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, entries())
    content = bytearray(path.read_bytes())
    name = f"archive/data/{KEYS[NAME]}".encode()
    record = content.rindex(b"PK\x01\x02", 0, content.rindex(name))  # the entry's record in the zip's directory
    content[record + 8] |= 1
    path.write_bytes(content)
    assert f"the zip's entry {name.decode()} is damaged or encrypted" in refusal(path)


def test_a_damaged_compressed_storage_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, entries(), compression=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo(f"archive/data/{KEYS[NAME]}").header_offset
    content = bytearray(path.read_bytes())
    content[start + 60 : start + 400] = bytes(340)
    path.write_bytes(content)
    assert f"the zip's entry archive/data/{KEYS[NAME]} can't be read" in refusal(path)
