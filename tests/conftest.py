"""What holds for every test: a device to run shaders on, and properties that try the same examples on every run."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from rnn_engine.gpu import list_devices
from tests.support.models import random_model, save_safetensors, tiny_shape

if TYPE_CHECKING:
    from tests.support.ray_fleet import RayFleets

pytest.register_assert_rewrite(*(f"tests.support.{name}_contract" for name in ("golden", "results", "runner")))

settings.register_profile("project", derandomize=True, deadline=None, max_examples=50, database=None)
settings.load_profile("project")
os.environ["RNN_ENGINE_TUNE"] = "0"  # also for the commands that tests start: kernels are fixed, and none are kept


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--over",
        choices=("engine", "fleet"),
        default="engine",
        help="what the servers of tests/server have: an engine or a fleet, on Ray Serve where it loads a model",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "over_one_engine(reason): a fleet can't pass the test")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what is no text in UTF-8 in what a test has printed and logged: processes can't send it to each other."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop at once where there is no device: a test that skips for want of one would hide what it does not check."""
    # A shell starts what it runs in the background with Ctrl-C ignored; tests that press it need it back.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not list_devices():
        pytest.exit(
            "the tests need a device that WebGPU can compute on, and wgpu finds none; `make test` installs Mesa's "
            "software driver where it can, and says what to install where it can't",
            returncode=1,
        )


def pytest_collection_finish() -> None:
    """Leave the collected tests and all modules out of each later collection of garbage: they stay to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small random model that works on token ids."""
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_safetensors(random_model(tiny_shape(vocab=96), seed=5), path, "f32")
    return path


@pytest.fixture(scope="session")
def ray_fleets() -> Iterator[RayFleets]:
    """Replicas on Ray Serve, started when they are first asked for."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed; pip install 'rnn-engine[fleet]'")
    from tests.support.ray_fleet import RayFleets

    fleets = RayFleets()
    yield fleets
    fleets.close()
