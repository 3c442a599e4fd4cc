"""Which replica a request goes to."""

from __future__ import annotations

import random
from collections import Counter

from rnn_engine.fleet.routing import (
    BLOCK_TOKENS,
    QUEUED_TOKENS,
    RUNNING_TOKENS,
    Candidate,
    PrefixRouter,
    block_digests,
)


def replicas(*outstanding: int, slots: int = 8) -> list[Candidate]:
    return [Candidate(name, slots, count) for name, count in zip("abcd", outstanding, strict=False)]


def prompt(seed: int, length: int = 3 * BLOCK_TOKENS) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1000) for _ in range(length)]


def test_a_new_prompt_goes_where_the_fewest_requests_are() -> None:
    router = PrefixRouter()
    assert router.choose(replicas(3, 1, 2), "none", prompt(1)).name == "b"
    assert router.choose(replicas(0, 0), "none", []).name == "a"
    unlike = [Candidate("a", 2, 1), Candidate("b", 8, 1)]
    assert router.choose(unlike, "none", prompt(2)).name == "b"


def test_a_prompt_follows_the_longest_beginning() -> None:
    router = PrefixRouter()
    common = prompt(1, 2 * BLOCK_TOKENS)
    assert router.choose(replicas(0, 1), "none", [*common, *prompt(2)]).name == "a"
    assert router.choose(replicas(1, 0), "none", [*common[:BLOCK_TOKENS], *prompt(3)]).name == "a"
    assert router.choose(replicas(9, 0), "none", prompt(4)).name == "b"
    assert router.choose(replicas(1, 0), "none", [*common, *prompt(5)]).name == "a"
    assert router.choose(replicas(0, 1), "none", [*prompt(4), 7]).name == "b"


def test_less_than_a_block_in_common_is_none() -> None:
    router = PrefixRouter()
    common = prompt(1, BLOCK_TOKENS - 1)
    assert router.choose(replicas(0, 1), "none", [*common, 1, 2]).name == "a"
    assert router.choose(replicas(1, 0), "none", [*common, 3, 4]).name == "b"


def test_it_does_not_wait_longer_than_it_saves() -> None:
    kept = prompt(1)
    most = len(kept) // RUNNING_TOKENS
    for running, name in ((most - 1, "a"), (most + 1, "b")):
        router = PrefixRouter()
        router.choose(replicas(0, 1, slots=100), "none", kept)
        assert router.choose(replicas(running, 0, slots=100), "none", kept).name == name
    router = PrefixRouter()
    router.choose(replicas(0, 1, slots=1), "none", kept)
    queued = (len(kept) - RUNNING_TOKENS) // QUEUED_TOKENS
    assert router.choose(replicas(queued - 1, 0, slots=1), "none", kept).name == "a"
    assert router.choose(replicas(queued + 1, 0, slots=1), "none", kept).name == "b"


def test_other_states_and_other_clients_share_nothing() -> None:
    router = PrefixRouter()
    assert router.choose(replicas(0, 1), "none", prompt(1)).name == "a"
    assert router.choose(replicas(1, 0), "none/ann", prompt(1)).name == "b"
    assert router.choose(replicas(1, 0), "none", prompt(1)).name == "a"


def test_what_is_gone_is_forgotten() -> None:
    router = PrefixRouter()
    assert router.choose(replicas(0, 1), "none", prompt(1)).name == "a"
    router.forget("a")
    assert router.choose(replicas(1, 0), "none", prompt(1)).name == "b"
    small = PrefixRouter(most_blocks=3)
    small.choose(replicas(0, 1), "none", prompt(1))
    small.choose(replicas(0, 1), "none", prompt(2))
    assert small.choose(replicas(1, 0), "none", prompt(1)).name == "b"


def test_prompts_that_arrive_together_and_begin_alike_run_it_on_few_replicas() -> None:
    router, common = PrefixRouter(), prompt(1, 1000)
    outstanding = Counter(dict.fromkeys("abcd", 0))
    for number in range(64):
        candidates = [Candidate(name, 16, outstanding[name]) for name in "abcd"]
        outstanding[router.choose(candidates, "none", [*common, number]).name] += 1
    assert sum(count > 0 for count in outstanding.values()) == 2


def test_hashes_are_those_of_whole_beginnings() -> None:
    tokens = prompt(1, 2 * BLOCK_TOKENS + 5)
    first, second = block_digests("none", tokens)
    assert block_digests("none", tokens[:BLOCK_TOKENS]) == [first]
    assert block_digests("none", tokens[BLOCK_TOKENS:])[0] not in (first, second)
    assert block_digests("none", tokens[: BLOCK_TOKENS - 1]) == []
