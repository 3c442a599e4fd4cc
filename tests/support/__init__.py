"""What the tests of several parts share."""

import pytest

pytest.register_assert_rewrite("tests.support.runner_contract", "tests.support.golden_contract")
