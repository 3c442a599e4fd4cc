"""Set-up of every test: a device for shaders, and property tests that try the same examples on every run."""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported: beside other processes its threads only wait
os.environ["RNN_ENGINE_TUNE"] = "0"  # also for the commands that tests start: kernels are fixed, and none are kept
os.environ.setdefault("GALLIVM_PERF", "nopt")  # Mesa's software driver takes longer to compile a kernel than to run it

# That driver's cache takes kernels that were compiled for other lanes for its own, so each width has its own cache.
os.environ.setdefault(
    "MESA_SHADER_CACHE_DIR",
    os.path.join(  # no import may stand before
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
        "rnn-engine-tests",
        os.environ.get("LP_NATIVE_VECTOR_WIDTH", "default"),
    ),
)

import gc
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web_app
from hypothesis import settings

from rnn_engine.gpu import list_devices
from tests.support.models import random_model, save_safetensors, tiny_shape

if TYPE_CHECKING:
    from tests.support.ray_fleet import RayFleets

pytest.register_assert_rewrite(
    *(f"tests.support.{name}_contract" for name in ("golden", "results", "runner", "trainer"))
)

gc.disable()  # until the tests are collected: of what is imported and made for them, nothing can be freed

settings.register_profile("project", derandomize=True, deadline=None, max_examples=50, database=None)
settings.load_profile("project")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--over",
        choices=("engine", "fleet"),
        default="engine",
        help="what the servers of tests/server have: an engine or a fleet, on Ray Serve where it loads a model",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "over_one_engine(reason): a fleet can't pass the test")
    config.addinivalue_line("markers", "eight_lanes: needs a device whose subgroups have eight lanes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape text in a test's output and log that UTF-8 can't encode, since processes can't send it to each other."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop at once if there is no device. Tests that skip without one would hide what they do not check."""
    # A shell starts background processes with Ctrl-C ignored; tests that press it need the default.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not list_devices():
        pytest.exit(
            "the tests need a device that WebGPU can compute on, and wgpu finds none; `make test` installs Mesa's "
            "software driver where it can, and says what to install where it can't",
            returncode=1,
        )


def pytest_collection_finish() -> None:
    """Leave the collected tests and all modules out of later garbage collections, since they stay to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _names_what_is_left_open() -> Iterator[None]:
    """Collect garbage after a test that leaves sockets open, so that those nobody can close fail it and no later test.

    Sockets that fixtures or libraries still hold are none of these. aiohttp's cache would hold a test's servers.
    """
    before = _open_sockets()
    yield
    web_app._cached_build_middleware.cache_clear()
    if not _open_sockets() <= before:
        gc.collect()


def _open_sockets() -> set[str]:
    """Return this process's open sockets, on systems that list them in a folder."""
    found = set()
    with suppress(FileNotFoundError), os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # the scan's own, or one that a thread closes
                found.add(os.readlink(entry.path))
    return {name for name in found if name.startswith("socket:")}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a small random model that works on token ids."""
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_safetensors(random_model(tiny_shape(vocab=96), seed=5), path, "f32")
    return path


@pytest.fixture(scope="session")
def ray_fleets() -> Iterator[RayFleets]:
    """Yield replicas on Ray Serve, started when a test first needs them."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed; pip install 'rnn-engine[fleet]'")
    from tests.support.ray_fleet import RayFleets

    fleets = RayFleets()
    yield fleets
    fleets.close()
