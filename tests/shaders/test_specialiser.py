"""Specialising a shader with constants and includes, to a text with a line map."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine_shaders import Binding, Constant, specialise


def test_constants_become_lines_of_their_kind() -> None:
    source = specialise("copy_state", {"THREADS": 8, "STATE_STRIDE": 16})
    assert source.text.startswith("const THREADS = 8u;\nconst STATE_STRIDE = 16u;\n// ")


_LIMITS: dict[str, Constant] = {"THREADS": 8, "WIDTH": 16, "MAX_RUNS": 1, "MAX_ROWS": 1, "MAX_TOKENS": 1}


def test_bindings_are_known_by_name() -> None:
    source = specialise("copy_state", {"THREADS": 8, "STATE_STRIDE": 16})
    read = {"pairs": Binding(0, read_only=True), "initial": Binding(1, read_only=True)}
    assert source.bindings == {**read, "state": Binding(2, read_only=False)}


def test_every_line_is_traced_to_its_file() -> None:
    source = specialise("norm_rows", {**_LIMITS, "NORM_EPSILON": 1e-5, "CENTRES": True})
    lines = source.text.splitlines()
    assert source.origin(1) == "constants:1"
    struct = lines.index("struct Batch {") + 1
    assert source.origin(struct).startswith("batch.wgsl:")
    after = next(number for number, line in enumerate(lines, 1) if "@binding(3)" in line)
    assert source.origin(after).startswith("norm_rows.wgsl:")
    assert not any("#include" in line for line in lines)


def test_a_misspelt_constant_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"copy_state.wgsl uses none of the constants \['THREAD'\]"):
        specialise("copy_state", {"THREAD": 8, "THREADS": 8, "STATE_STRIDE": 16})


def test_a_misspelt_include_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"copy_state.wgsl includes none of \['WEIGHTS'\]"):
        specialise("copy_state", {"THREADS": 8, "STATE_STRIDE": 16}, {"WEIGHTS": "weights_f16"})


def test_an_include_may_be_a_file_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "plain.wgsl"
    path.write_text("// plain\n#include eight\n")
    source = specialise("norm_rows", _LIMITS, {"norm": path})
    line = source.text.splitlines().index("// plain") + 1
    assert source.origin(line) == "plain.wgsl:1"
    assert source.origin(line + 1) == "eight.wgsl:1"


def test_what_wgsl_wants_first_comes_before_the_constants() -> None:
    source = specialise("peak", {"THREADS": 8, "ROUNDS": 4}, {"NUMBER": "number_f16"})
    lines = source.text.splitlines()
    assert lines[:2] == ["enable f16;", "const THREADS = 8u;"]
    assert (source.origin(1), source.origin(2)) == ("number_f16.wgsl:1", "constants:1")
