"""Pickles that ask for anything except tensors are refused, and none of their calls happens."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from rnn_engine.tensor_files.pth_pickle import read_tensor_refs
from tests.support import pth

TENSOR = pth.tensor(pth.storage("0", "float32", 4), 0, (4,), (1,))
FLOAT_STORAGE = pth.name("torch", "FloatStorage")


class Touch:
    """An object that pickles to a call that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_call_to_the_system_is_refused_and_not_made(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    pickled = pickle.dumps({"emb.weight": Touch(marker)}, protocol)
    path = pth.write_pth(tmp_path / "model.pth", pickled, {})
    with pytest.raises(ModelError, match=r"model\.pth: the pickle "):
        open_model(path)
    assert not marker.exists()
    pickle.loads(pickled)  # the call really happens here
    assert marker.exists()


@pytest.mark.parametrize(
    "value",
    [
        pth.call(pth.name("builtins", "eval"), pth.text("1")),
        pth.call(pth.name("torch", "load"), pth.text("x")),
        pth.call(pth.name("torch._utils", "_rebuild_tensor_v2.__globals__"), pth.text("x")),
        pth.call(pth.name("collections", "OrderedDict.__init__.__globals__")),
        pth.name("__main__", "anything"),
    ],
)
def test_other_names_are_refused(value: bytes) -> None:
    with pytest.raises(ModelError, match=r"the pickle imports [\w.]+, which is not part of a tensor: it is refused"):
        read_tensor_refs(pth.program(pth.dict_of({"a": value})))


@pytest.mark.parametrize(
    "value",
    [
        pth.call(FLOAT_STORAGE, pth.integer(4)),
        pth.call(FLOAT_STORAGE, TENSOR),
        pth.call(TENSOR, pth.integer(4)),
        pth.call(pth.name("collections", "OrderedDict"), b"]"),
        pth.call(pth.name("torch._utils", "_rebuild_parameter"), pth.text("x"), b"\x88", b"N"),
        pth.call(pth.text("eval"), pth.text("1")),
    ],
)
def test_other_calls_are_refused(value: bytes) -> None:
    with pytest.raises(ModelError, match=r"the pickle calls .* with arguments that describe no tensor: it is refused"):
        read_tensor_refs(pth.program(pth.dict_of({"a": value})))


@pytest.mark.parametrize("target", [TENSOR, FLOAT_STORAGE, pth.name("torch._utils", "_rebuild_tensor_v2")])
def test_attributes_are_set_on_nothing(target: bytes) -> None:
    attributes = pth.dict_of({"dtype": pth.text("O"), "offset": pth.integer(-1)})
    with pytest.raises(ModelError, match="as if it were a container"):
        read_tensor_refs(pth.program(pth.dict_of({"a": target + attributes + b"b"})))


@pytest.mark.parametrize(
    ("opcodes", "name"),
    [
        (pth.name("collections", "OrderedDict") + b")\x81", "NEWOBJ"),
        (b"(icollections\nOrderedDict\n", "INST"),
        (b"(" + pth.name("collections", "OrderedDict") + b"o", "OBJ"),
        (b"\x82\x01", "EXT1"),
        (b"Pkey\n", "PERSID"),
    ],
)
def test_other_operations_are_refused(opcodes: bytes, name: str) -> None:
    with pytest.raises(ModelError, match=f"the pickle uses the operation {name}, which"):
        read_tensor_refs(pth.program(opcodes))


@pytest.mark.parametrize(
    "reference",
    [
        pth.tuple_of(pth.text("module"), FLOAT_STORAGE, pth.text("0"), pth.text("cpu"), pth.integer(4)),
        pth.tuple_of(
            pth.text("storage"), pth.name("collections", "OrderedDict"), pth.text("0"), pth.text("cpu"), pth.integer(4)
        ),
        pth.tuple_of(pth.text("storage"), FLOAT_STORAGE, pth.integer(0), pth.text("cpu"), pth.integer(4)),
        pth.text("0"),
    ],
)
def test_other_references_are_refused(reference: bytes) -> None:
    with pytest.raises(ModelError, match="not a tensor storage"):
        read_tensor_refs(pth.program(reference + b"Q"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (TENSOR, "the pickle holds a TensorRef; expected a dict of tensors"),
        (b"]", "the pickle holds a list; expected a dict of tensors"),
        (pth.dict_of({"lr": b"G?\xf0\x00\x00\x00\x00\x00\x00"}), "the pickle's entry lr is a float; expected a tensor"),
        (b"}" + pth.integer(1) + TENSOR + b"s", "the pickle holds a dict whose keys are not all names"),
    ],
)
def test_what_is_no_dict_of_tensors_is_refused(value: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_tensor_refs(pth.program(value))


def test_a_memo_index_costs_no_memory() -> None:
    far = b"r\xff\xff\xff\x7f"  # LONG_BINPUT 2147483647
    assert read_tensor_refs(pth.program(pth.dict_of({"a": TENSOR}) + far)).keys() == {"a"}


def test_doubled_tuples_cost_no_time() -> None:
    nested = b"N" + b"".join(b"q\x00h\x00\x86" for _ in range(100))  # 2 ** 100 leaves
    for use in (b"}" + nested + b"Ns", nested + nested + b"\x93", nested + b"Q", nested + nested + b"R"):
        with pytest.raises(ModelError):
            read_tensor_refs(pth.program(use))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_changed_pickle_gives_tensors_or_a_clear_error(data: st.DataObject) -> None:
    pickled = bytearray(pth.program(pth.dict_of({"emb.weight": TENSOR, "head.weight": pth.parameter(TENSOR)})))
    for _ in range(data.draw(st.integers(1, 5))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    try:
        refs = read_tensor_refs(bytes(pickled))
    except ModelError:
        return
    tensors = [ref for ref in refs.values() if not isinstance(ref, tuple)]
    assert all(min((ref.offset, *ref.shape, *ref.strides)) >= 0 for ref in tensors)
