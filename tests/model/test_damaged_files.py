"""Opening any path gives a model or raises a ModelError that describes the file."""

from __future__ import annotations

import contextlib
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from tests.support.models import random_model, save_safetensors, tiny_shape
from tests.support.pth import save_pth

MODEL = random_model(tiny_shape(layers=1, width=16, vocab=4), seed=1)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_model(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "none.safetensors")


def test_folder(tmp_path: Path) -> None:
    assert "has no config.json; expected a Hugging Face folder, or the path of a model file" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x00" * 4096, "nor a .pth, .gguf or .prefab"),
        (b"hello", "nor a .pth, .gguf or .prefab"),
        (b"fmgg" + b"\x00" * 64, "is a file of rwkv.cpp, which is not read"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "is a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "is a web page"),
        (b"GGUF\x03\x00\x00\x00" + b"\x00" * 64, "general.architecture is None; expected one of rwkv6, rwkv7"),
        (b"GGUF\x01\x00\x00\x00" + b"\x00" * 64, "is a GGUF file of version 1; expected 2 or 3"),
        (b"GGUF\x00\x00\x00\x03" + b"\x00" * 64, "is a GGUF file for big-endian machines"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "before version 1.6"),
        (b"PK\x03\x04" + b"\x00" * 100, "damaged or truncated zip file"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", "damaged or truncated safetensors file"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{]", "damaged or truncated safetensors file"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{}", "no RWKV version has these tensors"),
    ],
)
def test_what_is_no_model(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    assert message in refusal(path)


def test_a_zip_that_is_no_pth(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")
    assert "is a zip with 0 entries named data.pkl" in refusal(path)


def test_an_element_type_that_is_not_known(tmp_path: Path) -> None:
    header = json.dumps({"emb.weight": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x00\x00")
    assert "tensor emb.weight has the element type F8_E4M3; expected one of F16, BF16, F32" in refusal(path)


def write_safetensors(path: Path, header: object, data: bytes) -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


def entry(begin: int, end: int, shape: object = (2,), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry(0, 8), "b": entry(4, 12)},  # they overlap
        {"a": entry(0, 8), "b": entry(0, 8)},
        {"a": entry(0, 8)},  # bytes that belong to no tensor
        {"a": entry(4, 12)},
        {"a": entry(0, 8), "b": entry(8, 16)},  # ends beyond the file
        {"a": entry(0, 12)},  # another size than its shape says
        {"a": entry(0, 12, [1 << 40, 1 << 40])},
        {"a": entry(0, 12, [-3])},
        {"a": entry(12, 0)},
        {"a": entry(0, 12, [3.0])},
        {"a": entry(0, 12, [True, 3])},
        {"a": entry(0, 12, "3")},
        {"a": entry(0, 12, None)},
        {"a": {"dtype": "F32", "shape": [3]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0]}},
        {"a": [0, 12]},
        {"a": None},
        b"{" + b'"a":{' * 100_000,
        b"{\xff}",
    ],
)
def test_headers_that_the_safetensors_package_refuses(header: object, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "model.safetensors", header, bytes(12))
    with pytest.raises(SafetensorError):
        safe_open(path, framework="numpy")
    assert "damaged or truncated safetensors file" in refusal(path)


@pytest.fixture(scope="module", params=["safetensors", "pth"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a whole file of each format."""
    save = save_pth if request.param == "pth" else save_safetensors
    return save(MODEL, tmp_path_factory.mktemp("whole") / "model").read_bytes()


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_truncated_files(whole: bytes, share: float, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(whole[: max(1, int(share * len(whole)))])
    refusal(path)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_changed_bytes_give_a_model_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    content = bytearray(whole)
    ends = st.integers(0, 8000) | st.integers(-8000, -1)  # the header, and the zip's directory
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(ends)] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed"
    path.write_bytes(content)
    with contextlib.suppress(ModelError), open_model(path) as opened:
        assert all(opened.tensor(name).size for name in opened.names)
        if not content.startswith(b"PK"):
            safe_open(path, framework="numpy")  # the library reads every file that is accepted here
