"""What holds for every test: a device to run shaders on, and properties that try the same examples on every run."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

from rnn_engine.gpu import list_devices

pytest.register_assert_rewrite("tests.support.runner_contract", "tests.support.golden_contract")

settings.register_profile("project", derandomize=True, deadline=None, max_examples=50, database=None)
settings.load_profile("project")


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
