"""The HTTP tests of one engine, against a fleet: everything goes over as it does between processes."""

from __future__ import annotations

from tests.server.test_cancellations import *  # noqa: F403
from tests.server.test_completions import *  # noqa: F403
from tests.server.test_errors import *  # noqa: F403
from tests.server.test_full_queue import *  # noqa: F403
from tests.server.test_states import *  # noqa: F403
