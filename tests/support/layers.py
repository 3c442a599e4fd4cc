"""The rules that keep the parts of the project apart, and the search for breaches of them.

docs/architecture.md gives the reasons. A unit is a module or package that the table of layers names.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tests.support.imports import Import, find_files, find_imports, module_name

PRODUCT = ("rnn_engine", "rnn_engine_server", "rnn_engine_states", "rnn_engine_shaders")  # names that are imported
FOLDERS = ("rnn_engine", "server", "states", "shaders")  # where they are
DEVELOPMENT = ("tests", "tools")

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "rnn_engine.errors",
        "rnn_engine.bounds",
        "rnn_engine.files",
        "rnn_engine.database",
        "rnn_engine.types",
        "rnn_engine.chat_template",
        "rnn_engine.quantised",
        "rnn_engine.tensor_files",
        "rnn_engine.telemetry",
        "rnn_engine.pauses",
    ),
    (
        "rnn_engine_shaders",
        "rnn_engine.model",
        "rnn_engine.tokenizer",
        "rnn_engine.sampling",
        "rnn_engine.grammar",
        "rnn_engine.reference",
        "rnn_engine.demo",
        "rnn_engine_states",
    ),
    ("rnn_engine.requests", "rnn_engine.gpu", "rnn_engine.hub"),
    ("rnn_engine.forward",),
    ("rnn_engine.backward",),
    ("rnn_engine.versions", "rnn_engine.scheduler", "rnn_engine.interface"),
    ("rnn_engine.operations",),
    ("rnn_engine.loading",),
    ("rnn_engine.convert", "rnn_engine.engine", "rnn_engine.training"),
    ("rnn_engine.fleet", "rnn_engine.llm"),
    ("rnn_engine_server", "rnn_engine.cli", "rnn_engine.compat", "rnn_engine"),
)
LAYER_OF = {unit: layer for layer, units in enumerate(LAYERS) for unit in units}
WORDS = 0  # the layer whose modules may import each other

SIDEWAYS = frozenset(
    {
        ("rnn_engine.cli", "rnn_engine_server.core.app"),
        ("rnn_engine.cli", "rnn_engine_server.auth"),
        ("rnn_engine.cli", "rnn_engine_server.core.settings"),
        ("rnn_engine.cli", "rnn_engine_server.core.process"),
        ("rnn_engine.cli", "rnn_engine_server.telemetry.logs"),
        ("rnn_engine.cli", "rnn_engine_server.jobs"),
        ("rnn_engine.cli", "rnn_engine_server.store"),
    }
)
"""The imports inside a layer that are allowed all the same: the command line starts the server, has signals end it,
reads who may come in, bounds requests and connections, writes the log and runs the server's batches."""

APIS = "rnn_engine_server.apis"
API_BASES = ("rnn_engine_server.apis.common", "rnn_engine_server.apis.openai")  # each may import those before it
ABOVE_APIS = ("rnn_engine_server.apis.routes", "rnn_engine_server.core.app")  # put all APIs together


@dataclass(frozen=True, slots=True)
class Restricted:
    """A module that only some modules may import."""

    target: str
    allowed: tuple[str, ...]  # modules, with those below them
    reason: str


CONNECTED = (  # what requests pass on their way from a connection to a call, and the form of an upload
    "rnn_engine_server.core",
    "rnn_engine_server.connections",
    "rnn_engine_server.auth.admission",
    "rnn_engine_server.apis.openai.files",
)
RESTRICTED = (
    Restricted("wgpu", ("rnn_engine.gpu", *DEVELOPMENT), "only rnn_engine/gpu knows wgpu"),
    Restricted("aiohttp", (*CONNECTED, *DEVELOPMENT), "handlers take calls, and know no aiohttp"),
    Restricted("onnxruntime", ("rnn_engine.forward.onnx_graph", *DEVELOPMENT), "faster matmuls are an extra"),
    Restricted("valkey", ("rnn_engine_states.shared", *DEVELOPMENT), "the shared store is an extra"),
    Restricted("ray", ("rnn_engine.fleet", *DEVELOPMENT), "replicas on Ray Serve are an extra"),
    Restricted(
        "prompt_toolkit",
        ("rnn_engine.cli.chat.terminal", *DEVELOPMENT),
        "only the terminal's chat draws on the terminal",
    ),
    Restricted(
        "markdown_it", ("rnn_engine.cli.chat.terminal", *DEVELOPMENT), "only the terminal's chat draws on the terminal"
    ),
    Restricted("gguf", ("rnn_engine.tensor_files", *DEVELOPMENT), "only tensor_files knows GGUF"),
    Restricted("huggingface_hub", ("rnn_engine.hub", *DEVELOPMENT), "only hub knows the Hugging Face Hub"),
    Restricted(
        "tokenizers",
        ("rnn_engine.tokenizer.huggingface", *DEVELOPMENT),
        "only the tokenizer's module knows the package",
    ),
    Restricted("torch", ("tools",), "torch is for tools alone"),
    Restricted(
        "rnn_engine.reference",
        (
            "rnn_engine.reference",
            "rnn_engine.forward.cpu",
            "rnn_engine.forward.cpu_graph",
            "rnn_engine.forward.cpu_matmul",
            "rnn_engine.loading.runner",
            "rnn_engine.backward.cpu_trainer",
            "rnn_engine.versions",
            *DEVELOPMENT,
        ),
        "numpy runs models on the cpu: only its runner, its trainer and the versions use it",
    ),
)

_TENSOR_NAME = re.compile(
    r"(emb|head|ln_out|blocks)\..*|.*[._](ln0|time_mix\w*|att_shift|ffn_shift|_shift)(\..*)?|deepembed"
)
OF_ANY_VERSION = (
    "rnn_engine/forward",
    "rnn_engine/backward",
    "rnn_engine/reference",
    "rnn_engine/loading",
    "rnn_engine/scheduler",
)
"""Folders in which no name of a version's tensors stands, and none of its state's fields: `ModelShape` says them."""


def find_breaches(root: Path) -> list[str]:
    """Return the breaches, each as one line with file, line number and rule."""
    product = find_imports(root, FOLDERS)
    everything = product + find_imports(root, DEVELOPMENT)
    declared = _declared_distributions(root)
    breaches = [(found, rule) for found in product for rule in _layer_breaches(found)]
    breaches += [(found, rule) for found in product for rule in _api_breaches(found)]
    breaches += [(found, rule) for found in everything for rule in _restriction_breaches(found)]
    breaches += [(found, rule) for found in product for rule in _undeclared(found, declared)]
    lines = {f"{found.place}: imports {found.target}: {rule}" for found, rule in breaches}
    return sorted(lines | _strays(root) | _unused(declared, product) | _tensor_names(root))


def unit_of(module: str) -> str:
    """Return the unit that a module of the product belongs to: the longest unit that its name begins with."""
    parts = module.split(".")
    return next(unit for length in range(len(parts), 0, -1) if (unit := ".".join(parts[:length])) in LAYER_OF)


def _strays(root: Path) -> set[str]:
    """Return the files of rnn_engine that belong to no unit except the package itself."""
    names = {path.relative_to(root): module_name(path.relative_to(root)) for path in find_files(root, ("rnn_engine",))}
    strays = [path for path, name in names.items() if name not in LAYER_OF and unit_of(name) == "rnn_engine"]
    return {f"{path.as_posix()}:1: is in no layer; the table in tests/support/layers.py names all" for path in strays}


def _tensor_names(root: Path) -> set[str]:
    """Return breaches: names of one version's tensors in code for all versions."""
    breaches = set()
    for path in find_files(root, (*OF_ANY_VERSION, "states")):
        if path.is_relative_to(root / "states" / "rnn_engine_states" / "files"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _TENSOR_NAME.fullmatch(node.value):
                place = f"{path.relative_to(root).as_posix()}:{node.lineno}"
                breaches.add(f"{place}: {node.value!r} is a name of a version's own; `ModelShape` says names")
    return breaches


def _layer_breaches(found: Import) -> Iterator[str]:
    if not _is_within(found.target, PRODUCT):
        return
    importer, target = unit_of(found.importer), unit_of(found.target)
    if importer == target or _is_sideways(importer, found.target):
        return
    above, below = LAYER_OF[importer], LAYER_OF[target]
    if below > above:
        yield f"{importer} (layer {above}) may not import from a higher layer ({target}: {below})"
    elif below == above != WORDS:
        yield f"{importer} and {target} are both in layer {above} and may not import each other"


def _api_breaches(found: Import) -> Iterator[str]:
    """Yield breaches: an API may import itself and the bases, and only modules above the APIs may import an API."""
    target = _api_of(found.target)
    if target is None or _is_within(found.importer, (*ABOVE_APIS, *DEVELOPMENT)):
        return
    importer = _api_of(found.importer)
    if importer is None:
        yield f"only {' and '.join(ABOVE_APIS)} may import an API"
        return
    bases = API_BASES[: API_BASES.index(importer)] if importer in API_BASES else API_BASES
    if target != importer and target not in bases:
        yield f"{importer} may import of the APIs {', '.join(bases) or 'none'} and itself"


def _api_of(module: str) -> str | None:
    """Return the package or module of the API that a module belongs to, or None."""
    return ".".join(module.split(".")[:3]) if module.startswith(f"{APIS}.") else None


def _is_sideways(importer: str, target: str) -> bool:
    return any(importer == unit and _is_within(target, (module,)) for unit, module in SIDEWAYS)


def _restriction_breaches(found: Import) -> Iterator[str]:
    for rule in RESTRICTED:
        if _is_within(found.target, (rule.target,)) and not _is_within(found.importer, rule.allowed):
            yield rule.reason
    if _is_within(found.importer, PRODUCT) and _is_within(found.target, DEVELOPMENT):
        yield "tests/ and tools/ are not part of what is installed"


def _undeclared(found: Import, declared: frozenset[str]) -> Iterator[str]:
    top = found.target.partition(".")[0]
    known = top in sys.stdlib_module_names or top in PRODUCT or top in DEVELOPMENT
    if not known and not any(_has_module(name, top) for name in declared):
        yield f"pyproject.toml does not list {top} among its dependencies"


def _unused(declared: frozenset[str], product: Iterable[Import]) -> set[str]:
    """Return the declared dependencies that nothing imports."""
    tops = {found.target.partition(".")[0] for found in product}
    unused = {name for name in declared if not any(_has_module(name, top) for top in tops)}
    return {f"pyproject.toml:1: nothing imports {name}" for name in unused}


def _has_module(distribution: str, top: str) -> bool:
    """Return True if a distribution's name, written as a module name, begins with the module's name `top`."""
    return f"{distribution}_".startswith(f"{top.lower()}_")


def _declared_distributions(root: Path) -> frozenset[str]:
    """Return the dependencies of pyproject.toml, extras included, as module names: lower case, with underscores."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = {name: wanted for name, wanted in project.get("optional-dependencies", {}).items() if name != "dev"}
    requirements = chain(project["dependencies"], *extras.values())
    names = (re.split(r"[\[<=>]", requirement)[0] for requirement in requirements)
    return frozenset(name.strip().lower().replace("-", "_") for name in names)


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
