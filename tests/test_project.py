"""The documents, the Makefile and the distribution agree with the code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from rnn_engine.cli import main
from tests.support.layers import DEVELOPMENT, FOLDERS, LAYERS, PRODUCT

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
GUIDES = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]  # the changelog also describes older code
UNITS = [unit for units in LAYERS for unit in units]


def read(name: str) -> str:
    return (ROOT / name).read_text()


def make(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    missing = [link for link in local_links(document.read_text()) if not resolves(document, link)]
    assert missing == []


def local_links(text: str) -> Iterator[str]:
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code):
        if "://" not in link:
            yield link


def resolves(document: Path, link: str) -> bool:
    name, _, heading = link.partition("#")
    target = (document.parent / name).resolve() if name else document
    if not target.exists():
        return False
    return not heading or heading in {anchor(line) for line in target.read_text().splitlines() if line.startswith("#")}


def anchor(heading: str) -> str:
    """Return the name of a heading in links, as GitHub makes it."""
    words = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return words.replace(" ", "-")


def test_the_changelog_has_the_version() -> None:
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    assert f"## [{version}]" in read("CHANGELOG.md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_and_variables_in_documents_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE))
    variables = set(re.findall(r"^([A-Z]+) =", read("Makefile"), flags=re.MULTILINE))
    for target, rest in re.findall(r"(?:`|^ *|&& )make ([a-z-]+)([^`\n]*)", document.read_text(), flags=re.MULTILINE):
        assert target in targets
        assert set(re.findall(r"\b([A-Z]+)=", rest)) <= variables


def test_tests_that_need_eight_lanes_are_in_the_folders_where_they_are_run() -> None:
    [folders] = re.findall(r"^EIGHT_LANES = (.+)$", read("Makefile"), re.MULTILINE)
    marked = [
        path
        for path in (ROOT / "tests").glob("*/test_*.py")
        if re.search("eight_lanes|SHARING_KINDS", path.read_text())
    ]
    assert {f"tests/{path.parent.name}" for path in marked} == set(folders.split())


def test_make_help_lists_every_target() -> None:
    listed = {line.split()[0] for line in make("help").splitlines() if re.match(r"[a-z-]+  ", line)}
    phony = set(re.findall(r"^\.PHONY: (.*)", read("Makefile"), flags=re.MULTILINE)[0].split())
    assert listed == phony - {"setup-dev"}


def test_make_serve_passes_on_what_is_set() -> None:
    assert "rnn-engine serve --device \"$device\" --port '65530'" in " ".join(make("-n", "serve").split())
    options = "PORT=8000 HOST=0.0.0.0 MODEL=a b.st DEVICE=cpu SLOTS=3 TOKENIZER=world API_KEY=secret"
    command = make("-n", "serve", *re.split(r" (?=[A-Z_]+=)", options))
    for part in (
        "device='cpu'",
        "RNN_ENGINE_API_KEY='secret' .venv/bin/rnn-engine",
        "serve 'a b.st'",
        "--port '8000'",
        "--host '0.0.0.0'",
        "--slots '3'",
        "--tokenizer 'world'",
    ):
        assert part in command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_options_in_documents_exist(document: Path) -> None:
    for name, rest in re.findall(r"(?:`|bin/)rnn-engine ([a-z][a-z-]*)([^`\n]*)", document.read_text()):
        command = main.get_command(click.Context(main), name)
        assert command is not None, name
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known


@pytest.mark.parametrize("document", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_in_documents_exist(document: Path) -> None:
    text = document.read_text()
    names = re.findall(rf"`((?:{'|'.join({*FOLDERS, *PRODUCT, *DEVELOPMENT})})(?:[./]\w+)+(?:\.py)?)`", text)
    names += re.findall(r"-m (tools[.\w]*)", text)
    assert [name for name in names if not is_module(name)] == []


def is_module(name: str) -> bool:
    """Return True if a dotted name or a path stands for a file or a folder."""
    path = place_of(name.removesuffix(".py"))
    return path.exists() or path.with_suffix(".py").exists()


def place_of(name: str) -> Path:
    """Return where a module or path of the project is, without its ending: rnn_engine_server.auth is in server/."""
    top = re.match(r"rnn_engine_(\w+)", name)
    return ROOT.joinpath(*([top[1]] if top else []), name.replace(".", "/"))


@pytest.mark.parametrize("document", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_in_documents_imports_what_there_is_and_asks_the_model_that_serves(document: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL):
        assert set(re.findall(r'model="([^"]*)"', code)) <= {"demo"}, "`make serve` serves no other model"
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PRODUCT:
                module = import_module(node.module)
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_the_user_guide_names_every_command() -> None:
    text = read("docs/user-guide.md")
    assert [name for name in main.list_commands(click.Context(main)) if f"| `{name}" not in text] == []


def test_every_unit_of_the_layers_exists_and_stands_in_the_architecture() -> None:
    text = read("docs/architecture.md")
    for unit in UNITS:
        path = place_of(unit)
        assert path.is_dir() or path.with_suffix(".py").is_file(), unit
        assert f"`{path.relative_to(ROOT).as_posix()}`" in text, unit


def test_every_wgsl_file_is_used() -> None:
    names = [re.compile(name) for path in ROOT.glob("rnn_engine/**/*.py") for name in texts_in(path.read_text())]
    shaders = {path.stem: path.read_text() for path in ROOT.glob("shaders/rnn_engine_shaders/*.wgsl")}
    included = set(re.findall(r"^#include (\w+)$", "\n".join(shaders.values()), flags=re.MULTILINE))
    assert [name for name in shaders if name not in included and not any(text.fullmatch(name) for text in names)] == []


def texts_in(source: str) -> Iterator[str]:
    """Yield the strings of a Python file as patterns. A hole in an f-string, as in weights_{x}, matches any word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.escape(node.value)
        if isinstance(node, ast.JoinedStr) and any(isinstance(part, ast.Constant) for part in node.values):
            yield "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"\w+" for p in node.values)
