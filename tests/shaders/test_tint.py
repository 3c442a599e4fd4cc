"""Every shader is compiled by a second compiler, too, if node and npm are installed: see tools/tint."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

import pytest

from tests.support.every_shader import every_shader
from tools.tint import INSTALLED, refused_by_tint

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not INSTALLED.exists(), reason="needs node, and `npm ci` in tools/tint"
)


@pytest.fixture(scope="module")
def shaders() -> Mapping[str, str]:
    return every_shader()


def test_tint_compiles_every_shader(shaders: Mapping[str, str]) -> None:
    assert len(shaders) > 200
    assert refused_by_tint(shaders) == {}


def test_tint_refuses_a_loop_of_broadcasts_that_begins_at_a_threads_number(shaders: Mapping[str, str]) -> None:
    (name, text) = next(
        (name, text) for name, text in shaders.items() if "first_eight" in text and "broadcast_eight" in text
    )
    refused = refused_by_tint({name: text.replace("first_eight(own.split)", "own.split"), "right": text})
    assert list(refused) == [name]
    assert any("uniform control flow" in message for message in refused[name])
