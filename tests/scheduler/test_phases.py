"""The allowed successions of a sequence's phases."""

from __future__ import annotations

import pytest

from rnn_engine.scheduler.phases import (
    FOLLOWS,
    AnyPhase,
    Closing,
    Decode,
    DeviceDecode,
    Done,
    Draft,
    Given,
    HostDecode,
    Prompt,
    TakeIn,
    may_follow,
)

KINDS = set(FOLLOWS)


def reached_from(first: type[AnyPhase]) -> set[type[AnyPhase]]:
    reached, left = set[type[AnyPhase]](), [first]
    while left:
        before = left.pop()
        following = {after for after in KINDS if may_follow(before, after)} - reached
        reached |= following
        left += following
    return reached


def test_all_begin_with_the_prompt() -> None:
    assert reached_from(Prompt) == KINDS - {Prompt}


@pytest.mark.parametrize("kind", sorted(KINDS - {Done}, key=str))
def test_all_come_to_an_end(kind: type[AnyPhase]) -> None:
    assert Done in reached_from(kind)


@pytest.mark.parametrize(
    ("before", "after"),
    [(Done, HostDecode), (HostDecode, Prompt), (DeviceDecode, Draft), (Decode, Draft), (TakeIn, Given), (Draft, Done)],
)
def test_what_may_not_follow(before: type[AnyPhase], after: type[AnyPhase]) -> None:
    assert not may_follow(before, after)


@pytest.mark.parametrize(("before", "after"), [(Prompt, Closing), (Closing, Done), (Given, Closing), (TakeIn, Done)])
def test_a_kind_of_phase_stands_for_its_base(before: type[AnyPhase], after: type[AnyPhase]) -> None:
    assert may_follow(before, after)
