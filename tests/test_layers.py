"""The rules of the layers hold in the project. The search for breaches finds each kind in a made-up tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.imports import find_imports
from tests.support.layers import find_breaches, unit_of

ROOT = Path(__file__).resolve().parents[1]


def test_the_project_keeps_to_its_layers() -> None:
    assert find_breaches(ROOT) == []


def write_tree(root: Path, files: dict[str, str]) -> Path:
    (root / "pyproject.toml").write_text('[project]\ndependencies = ["numpy>=2.0", "ml-dtypes", "wgpu>=0.32,<0.33"]\n')
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


ALLOWED = {
    "rnn_engine/requests.py": "from rnn_engine.errors import InvalidRequestError\nimport rnn_engine.types\n",
    "rnn_engine/__init__.py": "from rnn_engine.engine import Engine\n",
    "rnn_engine/model/open.py": "import numpy as np\nimport ml_dtypes\nfrom ..errors import ModelError\n",
    "rnn_engine/model/names.py": "from rnn_engine.model.open import open_model\nfrom . import open\n",
    "rnn_engine/gpu/device.py": "import wgpu.backends.wgpu_native\nfrom rnn_engine_shaders import specialise\n",
    "rnn_engine/forward/cpu.py": "from rnn_engine.reference import runs\n",
    "rnn_engine/cli/serve.py": "from rnn_engine_server.core.app import run\nfrom rnn_engine.engine import Engine\n",
    "server/rnn_engine_server/core/app.py": "from rnn_engine_server.apis.routes import ALL_ROUTES\n",
    "server/rnn_engine_server/apis/routes.py": "from rnn_engine_server.apis import tgi\n",
    "server/rnn_engine_server/apis/tgi.py": "from rnn_engine_server.apis.openai.chat import x\n",
    "tests/test_it.py": "import aiohttp\nfrom rnn_engine.reference import runs\n",
    "tools/train.py": "import torch\n",
}


def test_a_tree_that_keeps_the_rules_has_no_breach(tmp_path: Path) -> None:
    assert find_breaches(write_tree(tmp_path, ALLOWED)) == []


@pytest.mark.parametrize(
    ("path", "text", "breach"),
    [
        ("rnn_engine/types.py", "import rnn_engine.model", "layer 0) may not import from a higher layer"),
        ("rnn_engine/gpu/a.py", "from rnn_engine.forward import x", "layer 2) may not import from a higher layer"),
        ("rnn_engine/forward/a.py", "from ..scheduler import x", "layer 3) may not import from a higher layer"),
        (
            "rnn_engine/model/a.py",
            "from rnn_engine.engine import Engine",
            "layer 1) may not import from a higher layer",
        ),
        ("rnn_engine/model/__init__.py", "from .. import engine", "layer 1) may not import from a higher layer"),
        ("states/rnn_engine_states/a.py", "import rnn_engine.model.names", "both in layer 1"),
        (
            "server/rnn_engine_server/apis/tgi.py",
            "from rnn_engine_server.apis.ollama import routes",
            "rnn_engine_server.apis.tgi may import of the APIs",
        ),
        (
            "server/rnn_engine_server/apis/openai/a.py",
            "import rnn_engine_server.apis.engine.x",
            "may import of the APIs rnn_engine_server.apis.common and itself",
        ),
        (
            "server/rnn_engine_server/apis/common/a.py",
            "import rnn_engine_server.apis.openai.x",
            "may import of the APIs none and itself",
        ),
        ("server/rnn_engine_server/core/bodies.py", "import rnn_engine_server.apis.common.x", "may import an API"),
        ("server/rnn_engine_server/a.py", "from rnn_engine.cli import main", "both in layer 10"),
        ("rnn_engine/cli/a.py", "from rnn_engine_server.apis.routes import x", "both in layer 10"),
        ("rnn_engine/forward/a.py", "import wgpu", "only rnn_engine/gpu knows wgpu"),
        ("rnn_engine/forward/a.py", "def f():\n    from wgpu.utils import x", "only rnn_engine/gpu knows wgpu"),
        ("rnn_engine/cli/a.py", "from aiohttp import web", "handlers take calls"),
        ("server/rnn_engine_server/apis/tgi.py", "from aiohttp import web", "handlers take calls"),
        ("rnn_engine/gpu/a.py", "from rnn_engine.reference import runs", "numpy runs models on the cpu"),
        ("rnn_engine/forward/a.py", "import rnn_engine.reference", "numpy runs models on the cpu"),
        ("tests/a.py", "import torch", "torch is for tools alone"),
        ("rnn_engine/gpu/a.py", "import importlib\nimportlib.import_module('torch.nn')", "torch is for tools alone"),
        ("states/rnn_engine_states/a.py", "from tests.support import layers", "not part of what is installed"),
        ("states/rnn_engine_states/a.py", "import requests", "does not list requests among its dependencies"),
    ],
)
def test_each_kind_of_breach_is_found(tmp_path: Path, path: str, text: str, breach: str) -> None:
    found = find_breaches(write_tree(tmp_path, {path: text + "\n"}))
    last_line = text.count("\n") + 1
    assert [line for line in found if line.startswith(f"{path}:{last_line}: imports ") and breach in line] != []


def test_a_dependency_that_nothing_imports_is_found(tmp_path: Path) -> None:
    write_tree(tmp_path, {**ALLOWED, "rnn_engine/gpu/device.py": "", "tests/a.py": "import wgpu"})
    assert find_breaches(tmp_path) == ["pyproject.toml:1: nothing imports wgpu"]


def test_a_name_of_a_versions_tensor_in_the_code_of_all_versions_is_found(tmp_path: Path) -> None:
    write_tree(tmp_path, {**ALLOWED, "rnn_engine/forward/a.py": 'NAME = "head.weight"\nOTHER = "head"\n'})
    [found] = find_breaches(tmp_path)
    assert found.startswith("rnn_engine/forward/a.py:1: 'head.weight' is a name of a version's own")


def test_a_file_in_no_layer_is_found(tmp_path: Path) -> None:
    write_tree(tmp_path, {**ALLOWED, "rnn_engine/stray.py": ""})
    assert find_breaches(tmp_path) == [
        "rnn_engine/stray.py:1: is in no layer; the table in tests/support/layers.py names all"
    ]


def test_a_relative_import_is_resolved_from_a_module_and_from_a_package(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a/b/c.py": "from . import x\nfrom ..d import y\n", "a/b/__init__.py": "from .c import z\n"})
    found = {(one.importer, one.line, one.target) for one in find_imports(tmp_path, ("a",))}
    assert found == {("a.b.c", 1, "a.b.x"), ("a.b.c", 2, "a.d.y"), ("a.b", 1, "a.b.c.z")}


@pytest.mark.parametrize(
    ("module", "unit"),
    [
        ("rnn_engine", "rnn_engine"),
        ("rnn_engine.gpu.device", "rnn_engine.gpu"),
        ("rnn_engine.Engine", "rnn_engine"),
        ("rnn_engine_server.apis.openai.chat", "rnn_engine_server"),
    ],
)
def test_unit_of_a_module(module: str, unit: str) -> None:
    assert unit_of(module) == unit
