"""Random numbers are those of Philox4x32-10, and depend only on seed, place and kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.sampling.params import SamplingParams
from rnn_engine.sampling.sequence_sampler import SequenceSampler, philox, uniforms, uniforms_from
from tests.support.logit_rows import Device, peaked


@pytest.mark.parametrize(
    ("counter", "seed", "expected"),
    [  # the known answers of Random123, the authors' library
        ([0, 0, 0, 0], 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0_A4093822,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers(counter: list[int], seed: int, expected: list[int]) -> None:
    counters = np.array(counter, np.uint32)[:, np.newaxis]
    assert philox(np.array([seed], np.uint64), counters)[:, 0].tolist() == expected


@settings(max_examples=30, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5),
    first=st.integers(0, 2**31),
    kind=st.integers(0, 3),
)
def test_numbers_that_are_made_together_are_those_that_are_made_alone(seeds: list[int], first: int, kind: int) -> None:
    places = first + np.arange(len(seeds))
    together = uniforms(np.array(seeds, np.uint64), places, kind)
    assert ((together >= 0.0) & (together < 1.0)).all()
    for number, (seed, place) in enumerate(zip(seeds, places.tolist(), strict=True)):
        assert uniforms_from(seed, place, 1, 4)[kind] == together[number]
        assert uniforms_from(seed, max(place - 3, 0), 9, 4)[4 * min(place, 3) + kind] == together[number]


def test_numbers_are_even_and_differ_by_seed_place_and_kind() -> None:
    numbers = np.array([uniforms_from(seed, 0, 500, 2) for seed in range(20)]).reshape(20, 500, 2)
    assert len(np.unique(numbers)) == numbers.size
    counts, _ = np.histogram(numbers, 10, (0.0, 1.0))
    assert np.abs(counts - numbers.size / 10).max() < 5 * np.sqrt(numbers.size / 10)


def test_a_token_that_is_given_leaves_the_numbers_of_the_later_ones() -> None:
    row, sampling = Device(1000).row(peaked()), SamplingParams(top_p=1.0, top_k=0)
    drawing, given_first = SequenceSampler(sampling, 5), SequenceSampler(sampling, 5)
    tokens = [drawing.draw(row).token for _ in range(100)]
    given_first.given(7)
    assert [given_first.draw(row).token for _ in range(99)] == tokens[1:]
