"""Find the imports in a tree of Python files by reading them, without running anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Import:
    """One import: its file and line, the importing module, and the imported name."""

    path: str  # relative to the root of the tree
    line: int
    importer: str  # the dotted name of the file's module
    target: str  # the dotted name that is imported; `from a import b` gives a.b

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


def find_imports(root: Path, folders: tuple[str, ...]) -> list[Import]:
    """Return every import in the Python files under `folders`, also those inside functions."""
    return [found for path in find_files(root, folders) for found in _imports_of(root, path)]


def find_files(root: Path, folders: tuple[str, ...]) -> list[Path]:
    """Return every Python file under `folders`."""
    return [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def _imports_of(root: Path, path: Path) -> Iterator[Import]:
    relative = path.relative_to(root)
    importer = module_name(relative)
    package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        for target in _targets(node, package):
            yield Import(relative.as_posix(), getattr(node, "lineno", 0), importer, target)


def module_name(relative: Path) -> str:
    """Return the dotted name of a file's module: a/b.py -> a.b; a/__init__.py -> a."""
    parts = relative.with_suffix("").parts
    if len(parts) > 1 and parts[1].startswith("rnn_engine_"):
        parts = parts[1:]  # a top folder that holds one package
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(level=0, module=str(module)):
            return [f"{module}.{alias.name}" for alias in node.names]
        case ast.ImportFrom():
            parts = package.split(".")
            base = [*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])]
            return [".".join([*base, alias.name]) for alias in node.names]
        case ast.Call(func=ast.Name(id="__import__" | "import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
        case _:
            return []
