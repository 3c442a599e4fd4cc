"""What holds for every test: a device to run shaders on, and properties that try the same examples on every run."""

from __future__ import annotations

import pytest
import wgpu
from hypothesis import settings

settings.register_profile("project", derandomize=True, deadline=None, max_examples=50, database=None)
settings.load_profile("project")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop at once where there is no device: a test that skips for want of one would hide what it does not check."""
    backends = [adapter.info["backend_type"] for adapter in wgpu.gpu.enumerate_adapters_sync()]
    if not any(backend in ("Vulkan", "Metal", "D3D12") for backend in backends):
        pytest.exit(
            "the tests need a device that WebGPU can compute on, and wgpu finds none; `make test` installs Mesa's "
            "software driver where it can, and says what to install where it can't",
            returncode=1,
        )
