"""Run the code of another commit of this project with the benchmarks of this one.

Call `use_root` before importing anything of the project except `tools`. Benchmarks that run other commits use `find`
to import names that these may lack, or have in other modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]


def use_root(root: Path) -> None:
    """Make `import` find `rnn_engine` and its sister packages in `root`, the working tree of a commit."""
    assert "rnn_engine" not in sys.modules, "the project was already imported from another place"
    sys.path.insert(0, str(root.resolve()))


def find(name: str, *modules: str) -> Any:  # noqa: ANN401
    """Return `name` from the first of `modules` that has it, for names that have moved between commits."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise ImportError(f"none of {', '.join(modules)} has {name}")


def random_model(name: str, num_layers: int | None = None) -> Any:  # noqa: ANN401
    """Return the commit's own random model of a published shape, with `num_layers` layers unless that is None."""
    import dataclasses

    import rnn_engine

    path = Path(str(rnn_engine.__file__)).parents[1] / "tools" / "bench" / "random_model.py"
    spec = importlib.util.spec_from_file_location("random_model_of_the_commit", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shape = module.SHAPES[name]
    if num_layers is not None:
        shape = dataclasses.replace(shape, num_layers=num_layers)
    return module.RandomModel(shape)
