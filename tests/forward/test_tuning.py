"""How much work a step is given, by the kind of device."""

from __future__ import annotations

import pytest

from rnn_engine.forward.tuning import Tuning, tuning_for
from rnn_engine.gpu import DeviceInfo
from tests.support.models import tiny_shape


def tuning_of(kind: str) -> Tuning:
    return tuning_for(DeviceInfo(0, "any", kind, "any", "any"), can_broadcast=True)


@pytest.mark.parametrize(("kind", "tokens"), [("software", 64), ("integrated", 256), ("discrete", 256)])
def test_a_small_model_takes_as_many_tokens_as_a_step_may_have(kind: str, tokens: int) -> None:
    assert tuning_of(kind).step_tokens(tiny_shape()) == tokens


@pytest.mark.parametrize(("kind", "tokens"), [("software", 16), ("integrated", 48), ("discrete", 256)])
def test_a_large_model_takes_fewer_so_that_no_submit_is_long(kind: str, tokens: int) -> None:
    shape = tiny_shape(layers=32, width=2560, head_size=64, vocab=65536)
    assert tuning_of(kind).step_tokens(shape) == tokens


@pytest.mark.parametrize("kind", ["software", "integrated", "other", "discrete"])
def test_the_smallest_variant_that_takes_all_tokens_is_chosen(kind: str) -> None:
    tuning = tuning_of(kind)
    for count in range(1, 17):
        variant = tuning.matmul(count)
        assert variant is not None
        assert variant.tokens >= min(count, tuning.matmuls[-1].tokens)
        assert all(other.tokens < count for other in tuning.matmuls if other.tokens < variant.tokens)
        assert 64 % variant.rows == 0  # a workgroup stays inside one segment
        assert variant.splits == 1 or not tuning.broadcast
    assert (tuning.matmul(17) is None) == tuning.tiled
