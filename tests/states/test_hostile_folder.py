"""Other things in a folder of states: a start skips them, whatever they are, and logs it."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from rnn_engine.errors import RnnEngineError
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from rnn_engine_states.files.full import file_parts
from rnn_engine_states.named.entry import Retention
from tests.support.named_states import make_states, some_initial
from tests.support.toy_states import ToyDevice, keep, look_up, toy_shape


def many_dimensions(path: Path) -> None:
    content = b"".join(file_parts({"blocks.0.att.time_state": np.zeros((1,) * 64, np.float32)}, {}))
    path.write_bytes(content.replace(b"[1,1,", b"[1,1,1,").replace(b"        ", b"      ", 1))


def impossible_size(path: Path) -> None:
    content = b"".join(file_parts({"state.wkv": np.zeros((0, 8), np.float32)}, {"format": "rnn-engine-state"}))
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].replace(b"[0,8]", b"[0,9223372036854775808]")
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])


def loop(path: Path) -> None:
    path.symlink_to(path)


def nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


Make: TypeAlias = Callable[[Path], object]

HOSTILE: list[Make] = [many_dimensions, impossible_size, loop, nowhere, device, os.mkfifo, Path.mkdir]


@pytest.mark.parametrize("make", HOSTILE)
def test_a_folder_of_named_states(tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Make) -> None:
    make_states(tmp_path).put("kept", some_initial(), Retention(persistent=True), source="test")
    hostile = tmp_path / f"{uuid.uuid4()}.state"
    make(hostile)
    make(tmp_path / f"{uuid.uuid4()}.state.{uuid.uuid4().hex}.partial")
    with caplog.at_level(logging.WARNING):
        again = make_states(tmp_path)
    assert [entry.name for entry in again.entries()] == ["kept"]
    assert f"a persistent state is skipped: {hostile.name}" in caplog.text


@pytest.mark.parametrize("make", HOSTILE)
def test_a_file_that_the_operator_names(tmp_path: Path, make: Make) -> None:
    make(tmp_path / "poet.st")
    with pytest.raises(RnnEngineError, match=r"poet\.st"):
        make_states().add_file(tmp_path / "poet.st")


@pytest.mark.parametrize("make", HOSTILE)
def test_a_folder_of_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Make) -> None:
    shape = toy_shape()
    config = CacheConfig(host_capacity=0, disk=DiskConfig(tmp_path, background_bytes=0))
    first = ToyDevice(shape)
    keep(make_cache(shape, "model", first, config), first, [1, 2, 3])
    hostile = tmp_path / f"{40 * 'a'}.state"
    make(hostile)
    make(tmp_path / f"{40 * 'b'}.state.{uuid.uuid4().hex}.partial")
    with caplog.at_level(logging.WARNING):
        cache = make_cache(shape, "model", ToyDevice(shape), config)
    assert f"a state file is skipped: {hostile.name}" in caplog.text
    assert look_up(cache, [1, 2, 3]).saved == 3
