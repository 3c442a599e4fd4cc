"""A device stops drawing at every token that may end a text."""

from __future__ import annotations

from rnn_engine.requests import GenerateRequest
from rnn_engine.scheduler.text import Halts
from rnn_engine.types import unpack_masks

TEXTS = [b"", b"a", b"ab", b"b.", b".", b"\n\nx", b"\xc3", b"\xa9", *([b"z"] * 40)]
HALTS = Halts(len(TEXTS), TEXTS.__getitem__)


def halting(stop: tuple[bytes, ...] = (), stop_tokens: tuple[int, ...] = ()) -> list[int]:
    mask = HALTS.of(GenerateRequest([1], stop=stop, stop_tokens=stop_tokens))
    return [int(token) for token in unpack_masks(mask, len(TEXTS)).nonzero()[0]]


def test_stop_tokens_and_those_that_have_the_last_byte_of_a_stop_string() -> None:
    assert halting() == []
    assert halting(stop_tokens=(0, 40)) == [0, 40]
    assert halting(stop=(b"a.",)) == [3, 4]
    assert halting(stop=("é".encode(), b"\n"), stop_tokens=(1,)) == [1, 5, 7]


def test_requests_that_end_alike_share_a_mask() -> None:
    first, second = (GenerateRequest([n], stop=(stop,), stop_tokens=(3, 0)) for n, stop in ((1, b"ab"), (2, b"b")))
    assert HALTS.of(first) is HALTS.of(second)
