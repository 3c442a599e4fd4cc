"""States in files: every form is read, checked and written."""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from rnn_engine.errors import StateError
from rnn_engine.tensor_files.source import BinaryFile, MemoryFile
from rnn_engine.types import ModelShape, State
from rnn_engine_states.files.full import Origin, SavedState, file_bytes, full_state_file, read_full_state, read_summary
from rnn_engine_states.files.prefab import (
    Prefab,
    decode_prefab,
    encode_prefab,
    prefab_dims,
    rows_from_state,
    state_from_rows,
)
from rnn_engine_states.files.reading import Layout, LoadedState, read_state, state_from_tuned, tuned_from_state
from rnn_engine_states.frozen import Payload
from rnn_engine_states.tokens import pack
from tests.support.models import TensorModel, tiny_shape
from tests.support.named_states import save_full_state, save_tuned_state
from tests.support.older_models import tiny_v4
from tests.support.pth import save_pth
from tests.support.toy_states import same
from tests.support.toy_version import TOY_SHAPE

SHAPE = tiny_shape(layers=3, width=8, head_size=4, ffn=8, vocab=10)  # H = 2, N = 4
KEY = uuid.UUID(int=7)


def some_state(seed: int = 0, shape: ModelShape = SHAPE) -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal(array.shape).astype(np.float32) for name, array in shape.initial_state().items()
    }


def saved_state(state: State, tokens: bytes | None = None, **changes: Any) -> SavedState:  # noqa: ANN401
    origin = Origin("model", "none", 0 if tokens is None else len(tokens) // 4, "export", "a state")
    return SavedState(replace(origin, **changes), tokens, Payload(state, None))


def load(path: Path, layout: Layout | None = None) -> LoadedState:
    return read_state(path, SHAPE, "model", layout)


def tuned_file(path: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    tensors: dict[str, Any] = {f"blocks.{n}.att.time_state": np.zeros((2, 4, 4), np.float32) for n in range(3)}
    if change is not None:
        change(tensors)
    save_file(tensors, path)
    return path


def test_a_full_state_comes_back_whole_and_as_large_as_foretold(tmp_path: Path) -> None:
    state, tokens = some_state(), pack([1, 2, 9])
    logits = np.arange(10, dtype=np.float32)
    origin = Origin("model", "tuned", 3, "prompt_end", 'a "label" — ü')
    saved = SavedState(origin, tokens, Payload(state, logits))
    path = tmp_path / "one.state"
    save_full_state(path, saved)
    assert path.stat().st_size == file_bytes(*full_state_file(saved, "v7", checksums=False))
    again = read_full_state(path, SHAPE, "model")
    assert (again.origin, again.tokens) == (origin, tokens)
    assert same(again.payload.expand(), state)
    assert again.payload.logits is not None
    assert np.array_equal(again.payload.logits, logits)
    summary = read_summary(path, None)
    assert (summary.origin, summary.tokens, summary.has_logits) == (origin, tokens, True)
    loaded = load(path)
    assert (loaded.form, loaded.name) == ("full", origin.name)
    assert same(loaded.state, state)


def test_other_programs_can_read_our_files(tmp_path: Path) -> None:
    state = some_state()
    save_full_state(tmp_path / "full", saved_state(state, pack([5, 6])))
    tensors = load_file(tmp_path / "full")
    assert sorted(tensors) == ["state.att_shift", "state.ffn_shift", "state.wkv", "tokens"]
    assert np.array_equal(tensors["state.wkv"], state["wkv"])
    assert tensors["tokens"].tolist() == [5, 6]


def test_a_state_in_f16_is_read_as_f32(tmp_path: Path) -> None:
    state = some_state()
    saved = saved_state(state)
    halved = SavedState(saved.origin, None, saved.payload.stored_as("f16"))
    save_full_state(tmp_path / "half", halved)
    assert file_bytes(*full_state_file(halved, "v7")) < file_bytes(*full_state_file(saved, "v7", checksums=False))
    again = load(tmp_path / "half").state
    assert all(array.dtype == np.float32 for array in again.values())
    assert all(np.array_equal(again[name], state[name].astype(np.float16)) for name in state)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    save_full_state(path, saved_state(some_state(1)))

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", no_space)
        with pytest.raises(OSError, match="No space"):
            save_full_state(path, saved_state(some_state(2)))
    assert same(load(path).state, some_state(1))
    assert list(tmp_path.iterdir()) == [path]


def with_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


def set_metadata(name: str, value: str) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header["__metadata__"][name] = value

    return change


def drop_metadata(name: str) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        del header["__metadata__"][name]

    return change


def retype(name: str, dtype: str) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header[name]["dtype"] = dtype

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_metadata("format_version", "2"), "format version '2' can't be read; expected '1'"),
        (set_metadata("model", "model2"), "metadata does not match its checksum"),
        (set_metadata("num_tokens", "9"), "metadata does not match its checksum"),
        (drop_metadata("label"), "metadata does not match its checksum"),
        (drop_metadata("crc32"), "metadata does not match its checksum"),
        (retype("state.wkv", "I32"), "state.wkv does not match its checksum"),
        (retype("tokens", "I32"), r"tokens are int32 \[2\]; expected uint32 \[2\]"),
    ],
)
def test_a_full_state_whose_header_was_changed_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = tmp_path / "state"
    save_full_state(path, saved_state(some_state(), pack([1, 2])))
    with_header(path, change)
    with pytest.raises(StateError, match=message):
        load(path)


def test_a_flipped_bit_in_any_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    saved = saved_state(some_state(), pack([1, 2]))
    with_logits = SavedState(saved.origin, saved.tokens, Payload(some_state(), np.ones(10, np.float32)))
    save_full_state(path, with_logits)
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with pytest.raises(StateError, match="state: "):
            read_full_state(path, SHAPE, "model")


def test_another_models_full_state_is_refused_by_fingerprint_and_by_shape(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_full_state(path, saved_state(some_state(), model="another"))
    with pytest.raises(StateError, match="belongs to model another; the loaded model is model"):
        load(path)
    assert same(read_state(path, SHAPE, None).state, some_state())
    larger = tiny_shape(layers=3, width=16, head_size=4, ffn=8, vocab=10)
    with pytest.raises(StateError, match=r"att_shift has shape \[3, 8\]; this model needs \[3, 16\]"):
        read_state(path, larger, None)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_with_its_position(tmp_path: Path, bad: float) -> None:
    state = some_state()
    state["wkv"][2, 1, 3, 0] = bad
    save_full_state(tmp_path / "full", saved_state(state))
    with pytest.raises(StateError, match=r"wkv holds 1 NaN or infinite values, the first at \[2, 1, 3, 0\]"):
        load(tmp_path / "full")
    save_tuned_state(tmp_path / "tuned", state, SHAPE, "value_key")
    with pytest.raises(StateError, match=r"blocks.2.att.time_state holds 1 NaN .* first at \[1, 3, 0\]"):
        load(tmp_path / "tuned")


def test_a_tuned_state_is_wkv_alone_in_either_layout() -> None:
    state = some_state()
    for layout, axes in (("value_key", (0, 1, 2)), ("key_value", (0, 2, 1))):
        tensors = tuned_from_state(state, SHAPE, layout)  # type: ignore[arg-type]
        assert np.array_equal(tensors["blocks.1.att.time_state"], state["wkv"][1].transpose(axes))
        back = state_from_tuned(tensors, SHAPE, layout, "test")  # type: ignore[arg-type]
        assert np.array_equal(back["wkv"], state["wkv"])
        assert not back["att_shift"].any()
        assert not back["ffn_shift"].any()


def test_the_container_tells_the_layout_unless_the_caller_does(tmp_path: Path) -> None:
    state = some_state()
    swapped = state["wkv"].transpose(0, 1, 3, 2)
    tensors = {f"blocks.{n}.att.time_state": np.ascontiguousarray(state["wkv"][n]) for n in range(3)}
    save_file(tensors, tmp_path / "plain.st")
    assert np.array_equal(load(tmp_path / "plain.st").state["wkv"], swapped)
    assert np.array_equal(load(tmp_path / "plain.st", "value_key").state["wkv"], state["wkv"])
    for layout in ("value_key", "key_value"):
        save_tuned_state(tmp_path / layout, state, SHAPE, layout)
        assert np.array_equal(load(tmp_path / layout).state["wkv"], state["wkv"])

    save_pth(TensorModel(SHAPE, tensors), tmp_path / "state.pth")
    read = load(tmp_path / "state.pth")
    assert read.form == "tuned"
    assert np.array_equal(read.state["wkv"], state["wkv"])
    assert np.array_equal(load(tmp_path / "state.pth", "key_value").state["wkv"], swapped)


def test_a_tuned_state_in_bf16_and_among_other_tensors_is_read(tmp_path: Path) -> None:
    state = some_state()
    tensors: dict[str, Any] = {
        f"blocks.{n}.att.time_state": state["wkv"][n].astype(ml_dtypes.bfloat16) for n in range(3)
    }
    save_file(tensors | {"emb.weight": np.zeros((10, 8), np.float32)}, tmp_path / "model")
    expected = state["wkv"].astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(load(tmp_path / "model", "value_key").state["wkv"], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("blocks.1.att.time_state"), "time_state for layers 0; 2; this model has layers 0 to 2"),
        (
            lambda t: t.update({"blocks.3.att.time_state": t["blocks.0.att.time_state"]}),
            "time_state for layers 0 to 3; this model has layers 0 to 2",
        ),
        (
            lambda t: t.update({"blocks.2.att.time_state": np.zeros((1, 8, 8), np.float32)}),
            r"blocks.2.att.time_state has shape \[1, 8, 8\]; this model needs \[2, 4, 4\]",
        ),
        (lambda t: (t.clear(), t.update(x=np.zeros(1))), "holds no blocks.N.att.time_state tensors"),
    ],
)
def test_a_tuned_state_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(StateError, match=message):
        load(tuned_file(tmp_path / "file.st", change))


def test_an_unknown_layout_in_the_metadata_is_refused(tmp_path: Path) -> None:
    path = tuned_file(tmp_path / "file.st")
    with_header(path, lambda header: header.update(__metadata__={"time_state_layout": "sideways"}))
    with pytest.raises(StateError, match="time_state_layout is 'sideways'; expected 'key_value' or 'value_key'"):
        load(path)


def test_rows_lie_where_ai00_has_them() -> None:
    state = some_state()
    rows = rows_from_state(state, SHAPE).reshape(3, 6, 8)  # [L, N + 2, D]
    assert prefab_dims(SHAPE) == (8, 6, 3, 1)
    for layer, head, value, key in np.ndindex(3, 2, 4, 4):
        assert rows[layer, 1 + key, head * 4 + value] == state["wkv"][layer, head, value, key]
    assert np.array_equal(rows[:, 0], state["att_shift"])
    assert np.array_equal(rows[:, 5], state["ffn_shift"])
    assert same(state_from_rows(rows.reshape(-1).tolist(), [8, 6, 3, 1], SHAPE, "inline"), state)


def test_a_prefab_state_comes_back_whole(tmp_path: Path) -> None:
    state = some_state()
    path = tmp_path / "anything"
    path.write_bytes(encode_prefab(Prefab("mine", KEY, True, state), SHAPE))
    loaded = load(path)
    assert (loaded.form, loaded.name, loaded.id, loaded.default) == ("prefab", "mine", KEY, True)
    assert same(loaded.state, state)
    content = cbor2.loads(path.read_bytes())
    assert content["id"] == KEY.bytes
    assert content["data"]["shape"] == [8, 6, 3, 1]
    assert np.array_equal(np.frombuffer(content["data"]["data"], np.float32), rows_from_state(state, SHAPE))


def prefab_content(**changes: object) -> dict[str, object]:
    rows = rows_from_state(some_state(), SHAPE)
    content = {"name": "n", "id": KEY.bytes, "default": False, "data": {"shape": [8, 6, 3, 1], "data": rows.tobytes()}}
    return content | changes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "is a list; expected a map with"),
        ({"name": "n"}, "field 'id' is NoneType; expected bytes"),
        (prefab_content(id=b"short"), "id has 5 bytes; a UUID has 16"),
        (prefab_content(data={"shape": [8, 6, 3, 1]}), "data: field 'data' is NoneType; expected bytes"),
        (prefab_content(data={"shape": [8, 6, 3, 1], "data": b"12345"}), "5 bytes; expected a multiple of 4"),
        (
            prefab_content(data={"shape": [8, 6, 3, 1], "data": b"1234"}),
            r"data has shape \[1\]; this model needs \[144\]",
        ),
        (
            prefab_content(data={"shape": [16, 6, 3, 1], "data": b""}),
            r"shape is \[16, 6, 3, 1\]; this model needs \[8, 6, 3, 1\], the fastest axis first",
        ),
    ],
)
def test_a_prefab_that_does_not_fit_is_refused(content: object, message: str) -> None:
    with pytest.raises(StateError, match=message):
        decode_prefab(MemoryFile("file", cbor2.dumps(content)), SHAPE, "file")


def test_inline_data_that_is_no_flat_list_of_numbers_is_refused() -> None:
    with pytest.raises(StateError, match="inline: data is not a flat list of numbers"):
        state_from_rows([[1.0], [1.0, 2.0]], [8, 6, 3, 1], SHAPE, "inline")  # type: ignore[list-item]
    with pytest.raises(StateError, match=r"inline: data has shape \[2\]"):
        state_from_rows([1.0, 2.0], [8, 6, 3, 1], SHAPE, "inline")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is neither safetensors nor .pth nor CBOR"),
        (b"hello", "is neither safetensors nor .pth nor CBOR$"),
        (b"\xa4" + b"\x00" * 100_000, "has 100001 bytes; a state of this model has at most"),
        (b"\xa4dname", "^file: damaged or truncated CBOR file: 1 bytes from 6 on"),
        (b"\x02\0\0\0\0\0\0\0{" + b"x" * 10, "damaged or truncated safetensors file"),
    ],
)
def test_what_is_no_state_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(StateError, match=message):
        load(path)


def test_every_truncation_of_every_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_full_state(path, saved_state(some_state(), pack([1, 2])))
    forms = [
        path.read_bytes(),
        tuned_file(path).read_bytes(),
        encode_prefab(Prefab("n", KEY, False, some_state()), SHAPE),
    ]
    for content in forms:
        for length in range(0, len(content), 37):
            path.write_bytes(content[:length])
            with pytest.raises(StateError, match="file"):
                load(path)


def test_a_pth_file_that_can_not_be_read_is_a_state_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"PK\x03\x04")
    with pytest.raises(StateError, match=r"^file: damaged or truncated zip file"):
        load(tmp_path / "file")


@pytest.mark.parametrize("reads_before", range(7))
def test_a_file_that_is_cut_while_it_is_read_is_a_state_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_before: int
) -> None:
    """A mapping of the file would end the process."""
    path = tmp_path / "file"
    save_full_state(path, saved_state(some_state(), pack([1, 2])))
    read, reads = BinaryFile.read, itertools.count()

    def cut_and_read(file: BinaryFile, start: int, size: int) -> NDArray[np.uint8]:
        if next(reads) == reads_before:
            os.truncate(path, 20)
        return read(file, start, size)

    monkeypatch.setattr(BinaryFile, "read", cut_and_read)
    with pytest.raises(StateError, match="file changed while it was read"):
        load(path)


def test_a_file_that_is_not_there_is_a_state_error(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="absent can't be read: No such file"):
        load(tmp_path / "absent")


def test_forms_are_refused_for_versions_whose_states_have_other_fields() -> None:
    with pytest.raises(
        StateError, match="file: a tuned state has one matrix for each head; a toy state has no such field"
    ):
        state_from_tuned({}, TOY_SHAPE, "value_key", "file")
    message = r"file: a toy state can't be in this form, which has rows of 16 numbers: memory has the shape \[3\]"
    with pytest.raises(StateError, match=message):
        state_from_rows([], [8, 6, 3, 1], TOY_SHAPE, "file")


def test_a_state_of_vectors_alone_has_a_row_a_field() -> None:
    shape = tiny_v4(layers=3, width=8)
    state = some_state(4, shape)
    rows = rows_from_state(state, shape)
    assert prefab_dims(shape) == (8, 5, 3, 1)
    np.testing.assert_array_equal(rows.reshape(3, 5, 8)[1], [state[name][1] for name in state])
    for name, values in state_from_rows(rows, prefab_dims(shape), shape, "file").items():
        np.testing.assert_array_equal(values, state[name])
